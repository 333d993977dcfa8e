"""Constants of a packed file are written out as ONNX Runtime computes them when it loads the file; all else stays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import proto, weight
from onnx import TensorProto, helper, numpy_helper

from ptqc.artifact.folder import GOLDEN, Artifact
from ptqc.artifact.golden import Golden
from ptqc.codegen.onnxruntime.unpack import inlined, unpack
from ptqc.codegen.onnxruntime.write_out import write_out
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import external
from ptqc.ir.external import SpilledTensors, array_of, held, refers


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    """What it becomes, with all values in it."""
    spilled = SpilledTensors()
    return held(write_out(model, spilled))


def constants(model: onnx.ModelProto) -> Mapping[str, np.ndarray]:
    return {tensor.name: array_of(tensor) for tensor in model.graph.initializer}


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture(scope="module")
def packed(small: Artifact) -> onnx.ModelProto:
    return onnx.load(small.path)


@pytest.mark.parametrize("form", [lambda model: model, inlined], ids=["functions", "inlined"])
def test_the_integers_are_those_that_the_file_holds_packed(packed: onnx.ModelProto, form: Any) -> None:
    expanded = written(form(packed))
    values = constants(expanded)
    read = {node.output[0]: node.input for node in expanded.graph.node if node.op_type == "DequantizeLinear"}
    fixed = []
    for node in unpack(packed).model.graph:
        tensors = [None if value is None else value.const_value for value in node.inputs]
        if node.op_type == "DequantizeLinear" and tensors[0] is not None:
            fixed.append(
                (read[str(node.outputs[0].name)], [tensor.numpy() for tensor in tensors if tensor is not None])
            )
    assert len(fixed) == 8  # weight and bias of four layers
    for names, arrays in fixed:
        for name, array in zip(names, arrays, strict=True):
            assert np.array_equal(values[name], array)
    assert {values[names[0]].dtype for names, _ in fixed} == {np.dtype(np.int8), np.dtype(np.int32)}


def test_nothing_is_left_to_unpack(packed: onnx.ModelProto) -> None:
    expanded = written(packed)
    assert (len(expanded.functions), [entry.domain for entry in expanded.opset_import]) == (0, [""])
    assert set(operators(expanded)) == {node.op_type for node in packed.graph.node if not node.domain} | {
        "DequantizeLinear"
    }
    assert (expanded.ir_version, expanded.opset_import[0]) == (packed.ir_version, packed.opset_import[0])
    onnx.checker.check_model(expanded, full_check=True)


def test_outputs_are_equal(packed: onnx.ModelProto, small: Artifact) -> None:
    golden = Golden.read(small.folder / GOLDEN)
    runner = Runner(written(packed))
    for feeds, outputs in zip(golden.inputs, golden.outputs, strict=True):
        assert np.array_equal(runner.run(feeds)["y"], outputs["y"])


def test_large_initializers_are_not_in_memory(packed: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "SMALL", 1000)
    spilled = SpilledTensors()
    model = write_out(packed, spilled)
    assert sum(map(refers, model.graph.initializer)) == 2  # weights of 4,608 and 9,216 bytes
    assert constants(model).keys() == constants(written(packed)).keys()


def test_what_is_drawn_or_fed_or_an_output_stays() -> None:
    graph = """g (float[2] x, float[2] fed) => (float[2] y, float[2] shown) {
        drawn = RandomNormal<shape = [2]>()
        more = Add(fed, w)
        shown = Neg(w)
        twice = Add(w, w)
        four = Add(twice, twice)
        a = Add(x, drawn)
        b = Add(a, more)
        y = Add(b, four)
    }"""
    model = proto(graph, w=np.array([1, 2], np.float32), fed=np.array([5, 6], np.float32))
    expanded = written(model)
    assert operators(expanded) == ["RandomNormal", "Add", "Neg", "Add", "Add", "Add"]
    values = constants(expanded)
    assert values.keys() == {"w", "fed", "four"}
    assert values["four"].tolist() == [4, 8]


def test_a_branch_reads_what_was_computed_outside() -> None:
    other = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, [2])]
    )
    then = helper.make_graph(
        [helper.make_node("Add", ["twice", "w"], ["t"])], "t", [], [helper.make_tensor_value_info("t", 1, [2])]
    )
    model = proto(
        "g (bool c) => (float[2] y) { twice = Add(w, w) y = Identity(twice) }", w=np.array([1, 2], np.float32)
    )
    model.graph.node[1].CopyFrom(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    expanded = written(model)
    assert operators(expanded) == ["If"]
    assert Runner(expanded).run({"c": np.array(True)})["y"].tolist() == [3, 6]
    assert Runner(expanded).run({"c": np.array(False)})["y"].tolist() == [1, 2]


def test_types_without_arrays_stay() -> None:
    model = proto("g (float[2] x) => (float[2] y) { h = Cast<to=16>(w) f = Cast<to=1>(h) y = Add(x, f) }", w=weight(2))
    assert operators(written(model)) == ["Add"]  # inside, that type is no hindrance
    model = proto(
        "g (float[2] x) => (bfloat16[2] y) { h = Cast<to=16>(w) c = Cast<to=16>(x) y = Where(b, h, c) }", w=weight(2)
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([True, False]), "b"))
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.BFLOAT16
    assert operators(written(model)) == ["Cast", "Cast", "Where"]


def test_rows_and_products_in_blocks_stay_packed() -> None:
    tables = numpy_helper.from_array(np.arange(64, dtype=np.uint8).reshape(8, 1, 8), "codes")
    attributes: dict[str, Any] = {"K": 16, "N": 8, "bits": 4, "block_size": 16, "accuracy_level": 4}
    model = proto(
        "g (float[1,16] x) => (float[1,8] y) { s = Expand(scale, shape) flat = Reshape(s, every) y = Identity(x) }"
    )
    model.graph.initializer.extend([tables, numpy_helper.from_array(np.ones((8, 1), np.float32), "scale")])
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.array([8, 1]), "shape"), numpy_helper.from_array(np.array([-1]), "every")]
    )
    model.graph.node[2].CopyFrom(
        helper.make_node("MatMulNBits", ["x", "codes", "flat"], ["y"], domain="com.microsoft", **attributes)
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    expanded = written(model)
    assert operators(expanded) == ["MatMulNBits"]
    assert constants(expanded)["codes"].dtype == np.uint8
    assert constants(expanded)["flat"].shape == (8,)
