"""The layers of a network as CMSIS-NN sees them: geometry, padding, memory, and the program in C that runs them."""

import numpy as np
import onnx
import onnx.parser
import pytest
from cmsis_nn import Layer, Measured, _source, layers_of
from microcontroller import _layers, _whole
from onnx import numpy_helper

from ptqc.codegen.c.emulation import BoardRun, SectionSizes

NETWORK = """
<ir_version: 8, opset_import: ["": 17]>
network (float[N, 3, 9, 8] image) => (float[N, 10] scores) {
    edge = Conv<kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER">(image, w0, b0)
    first = Relu(edge)
    deep = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=6>(first, w1)
    sum = Add(deep, first)
    pooled = AveragePool<kernel_shape=[5, 4], strides=[5, 4]>(sum)
    flat = Flatten(pooled)
    scores = Gemm<transB=1>(flat, w2, b2)
}
"""
SHAPES = {"w0": (6, 3, 3, 2), "b0": (6,), "w1": (6, 1, 3, 3), "w2": (10, 6), "b2": (10,)}


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> list[Layer]:
    model = onnx.parser.parse_model(NETWORK)
    constants = {name: np.full(shape, 0.5, np.float32) for name, shape in SHAPES.items()}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    path = tmp_path_factory.mktemp("network") / "network.onnx"
    onnx.save(model, str(path))
    return layers_of(path)


def test_geometry_is_that_of_the_model(layers: list[Layer]) -> None:
    edge, deep, addition, pool, dense = layers
    assert (edge.kind, edge.source, edge.result) == ("conv", (9, 8, 3), (5, 4, 6))
    assert (edge.kernel, edge.stride, edge.pad) == ((3, 2), (2, 2), (1, 0))
    assert (deep.kind, deep.kernel, deep.stride, deep.pad) == ("depthwise", (3, 3), (1, 1), (1, 1))
    assert (addition.kind, addition.source, addition.input_bytes) == ("add", (5, 4, 6), 240)
    assert (pool.kind, pool.kernel, pool.result) == ("pool", (5, 4), (1, 1, 6))
    assert (dense.kind, dense.source, dense.result) == ("dense", (1, 1, 6), (1, 1, 10))


def test_products_and_weights_are_counted(layers: list[Layer]) -> None:
    edge, deep, addition, pool, dense = layers
    assert (edge.products, edge.weight_bytes) == (5 * 4 * 6 * 18, 6 * 18 + 4 * 6)
    assert (deep.products, deep.weight_bytes) == (5 * 4 * 6 * 9, 6 * 9 + 4 * 6)
    assert (addition.products, addition.weight_bytes, pool.products) == (0, 0, 0)
    assert (dense.products, dense.weight_bytes) == (60, 60 + 40)


def test_memory_counts_what_is_read_later(layers: list[Layer]) -> None:
    image, block = 9 * 8 * 3, 5 * 4 * 6
    assert [layer.live for layer in layers] == [image + block, 2 * block, 2 * block, block + 6, 6 + 10]


def test_program_runs_each_layer_and_tells_its_scratch_memory(layers: list[Layer]) -> None:
    text = "\n".join(_source(layers))
    for index in range(len(layers)):
        assert f"case {2 * index}: return run_{index}(input, output);" in text
        assert f"case {2 * index + 1}: *scratch = size_{index}(); return 0;" in text
    assert "arm_depthwise_conv_wrapper_s8" in text
    assert text.count("sums_4") == 3  # of the weights of the dense layer, which MVE reads


def test_sums_of_weights_stay_in_memory_and_other_scratch_memory_does_not(layers: list[Layer]) -> None:
    run = BoardRun([], [], 100, SectionSizes(text=50), SectionSizes(text=900), SectionSizes(text=70))
    measured = Measured([1000, 500, 60, 40, 7], [300, 20, 0, 24, 40], [], run)
    whole = _whole(layers, measured)
    assert whole["instructions"] == 1607
    assert whole["scratch_bytes"] == 300 + 40
    assert whole["peak_bytes"] == layers[0].live + 300 + 40
    assert whole["code_bytes"] == 970
    assert [row["scratch_bytes"] for row in _layers(layers, measured)] == measured.scratch
