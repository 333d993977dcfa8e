"""Skeletons: the graph of a model file without its large tensors."""

import numpy as np
import onnx
import pytest
from compiling import proto, weight
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from ptqc.ir.external import OWN, SMALL, skeleton

GRAPH = """g (float[N,64] x) => (float[N,8] y) {
    h = MatMul(x, w) k = Constant <value = float[1] {2}> () s = Mul(h, k) y = MatMul(s, v)
}"""


def written(model: onnx.ModelProto) -> memoryview:
    return memoryview(model.SerializeToString())


@pytest.fixture
def model() -> onnx.ModelProto:
    """One weight that is large, and one that is not."""
    return proto(GRAPH, w=weight(64, 32), v=weight(32, 8, seed=1))


def test_all_but_large_tensors_are_as_they_were(model: onnx.ModelProto) -> None:
    result = skeleton(written(model))
    large, small = result.graph.initializer
    assert not large.raw_data
    assert small == model.graph.initializer[1]
    large.CopyFrom(model.graph.initializer[0])
    assert result == model


def test_a_reference_says_where_the_values_are(model: onnx.ModelProto) -> None:
    data = written(model)
    large = skeleton(data).graph.initializer[0]
    place = {entry.key: entry.value for entry in large.external_data}
    first = int(place["offset"])
    values = np.frombuffer(data[first : first + int(place["length"])], np.float32).reshape(tuple(large.dims))
    assert place["location"] == OWN
    assert np.array_equal(values, numpy_helper.to_array(model.graph.initializer[0]))


def test_values_that_are_elsewhere_stay_there(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 32], np.zeros(64 * 32)))
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0] * SMALL)
    assert skeleton(written(model)) == model
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="a" * SMALL)
    assert skeleton(written(model)) == model


@pytest.mark.parametrize("end", [1, 100, 3000, -1])
def test_what_is_cut_short_is_refused(model: onnx.ModelProto, end: int) -> None:
    with pytest.raises(ValueError, match="byte"):
        skeleton(written(model)[:end])


def test_damage_is_an_error_or_another_model(model: onnx.ModelProto) -> None:
    """Nothing hangs, and nothing is read outside of the file."""
    data = model.SerializeToString()
    random = np.random.default_rng(0)
    kept = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[random.integers(300)] = random.integers(256)
        try:
            result = skeleton(memoryview(bytes(damaged)))
        except (ValueError, DecodeError):
            continue
        for tensor in result.graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place.get("location") == OWN:
                kept += 1
                assert int(place["offset"]) + int(place["length"]) <= len(data)
    assert kept > 20
