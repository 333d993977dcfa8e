"""The TFLite form of a QDQ model: the same codes less 128, the interface of the ONNX model, layouts, a valid file."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import parse
from lowering import CONSTANTS, RESIDUAL, SEVEN, quantized, samples
from onnx import numpy_helper
from qdq_forms import both

from ptqc.codegen.litert.graph import IMAGE, tflite_graph
from ptqc.codegen.litert.operators import RULES
from ptqc.codegen.litert.writer import TfliteGraph
from ptqc.errors import TargetError

LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


@pytest.fixture(scope="module")
def qdq() -> onnx.ModelProto:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8), forms=SEVEN)
    return both(network, samples(1, 3, 8, 8))[0]


def converted(text: str, **constants: np.ndarray | np.generic) -> TfliteGraph:
    """The graph of a QDQ model in ONNX's text form."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items())
    return tflite_graph(model, RULES)


def names(graph: TfliteGraph) -> list[str]:
    return [each.name for each in graph.operators]


CODES: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.1)}


def test_weights_are_those_of_the_qdq_model(qdq: onnx.ModelProto) -> None:
    """Per output channel, with biases at the product of scales."""
    constants = {each.name: numpy_helper.to_array(each) for each in qdq.graph.initializer}
    dequantized = {each.output[0]: each.input for each in qdq.graph.node if each.op_type == "DequantizeLinear"}
    layers = [each for each in qdq.graph.node if each.op_type in ("Conv", "Gemm")]
    written = [each for each in tflite_graph(qdq, RULES).operators if each.name in LAYERS]
    assert len(layers) == len(written) > 3
    for layer, operator in zip(layers, written, strict=True):
        codes, scale, _ = (constants[name] for name in dequantized[layer.input[1]])
        x, weight, bias = operator.inputs
        assert weight.data is not None
        assert sorted(weight.data.ravel()) == sorted(codes.ravel())
        assert weight.data.dtype == np.int8
        assert weight.scales == tuple(map(float, scale))
        assert set(weight.zeros) == {0}
        assert weight.shape[weight.axis] == len(scale)
        np.testing.assert_allclose(bias.scales, np.float32(x.scales[0]) * scale, rtol=1e-6)


def test_activations_are_codes_less_128() -> None:
    graph = converted(
        """g (float[1,2,3,4] x) => (float[1,2,3,4] y) {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
            r = Sigmoid(d) p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)
        }""",
        **CODES,
    )
    assert names(graph) == ["QUANTIZE", "LOGISTIC", "QUANTIZE", "DEQUANTIZE"]
    first, sigmoid, last, _ = (each.output for each in graph.operators)
    assert (first.scales, first.zeros) == ((float(np.float32(0.05)),), (-8,))
    assert (sigmoid.scales, sigmoid.zeros) == ((1 / 256,), (-128,))  # which TFLite fixes
    assert last.scales == first.scales


def test_inputs_and_outputs_are_those_of_the_model(qdq: onnx.ModelProto) -> None:
    graph = tflite_graph(qdq, RULES)
    assert [(each.name, each.shape, each.dtype) for each in graph.inputs] == [("x", (1, 3, 8, 8), np.float32)]
    assert {name: (each.name, each.shape) for name, each in graph.outputs.items()} == {"y": ("y", (1, 5))}
    assert names(graph)[:2] == ["QUANTIZE", "TRANSPOSE"]
    assert names(graph)[-1] == "DEQUANTIZE"


def test_a_single_channel_is_not_moved() -> None:
    graph = converted(
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    assert names(graph) == ["RESHAPE", "MAX_POOL_2D", "RESHAPE"]


def test_a_transpose_to_channels_last_is_nothing_but_another_order() -> None:
    """So a network that was written for images with channels last gets its layout back."""
    graph = converted(
        """g (float[1,4,4,3] x) => (float[1,2,2,3] y) {
            a = Transpose<perm=[0,3,1,2]>(x) b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
            y = Transpose<perm=[0,2,3,1]>(b)
        }"""
    )
    assert names(graph) == ["MAX_POOL_2D"]
    assert IMAGE == (0, 2, 3, 1)


def test_one_value_is_moved_once() -> None:
    graph = converted(
        """g (float[1,2,4,4] x) => (float[1,2,2,2] y) {
            a = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) b = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)
            y = Add(a, b)
        }"""
    )
    assert names(graph) == ["TRANSPOSE", "MAX_POOL_2D", "AVERAGE_POOL_2D", "ADD", "TRANSPOSE"]


def test_layers_in_float_are_computed_on_real_values() -> None:
    """Their weights are stored so, whatever they are made of."""
    graph = converted(
        """g (float[2,4] x) => (float[2,3] y) {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
            c = Cast<to=1>(w) m = Mul(c, t) y = MatMul(d, m)
        }""",
        w=np.arange(12, dtype=np.int8).reshape(4, 3),
        **CODES,
    )
    assert names(graph) == ["QUANTIZE", "DEQUANTIZE", "FULLY_CONNECTED"]
    weight = graph.operators[-1].inputs[1]
    assert weight.data is not None
    np.testing.assert_allclose(weight.data, np.arange(12).reshape(4, 3).T * 0.1, rtol=1e-6)


def test_codes_that_the_specification_excludes_are_refused() -> None:
    text = """g (float[2,4] x) => (float[2,3] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, t, n)
        a = MatMul(d, v) b = QuantizeLinear(a, s, z) y = DequantizeLinear(b, s, z)
    }"""
    with pytest.raises(
        TargetError, match=r"rule for MatMul 'a' with codes of weights below -127: compile without 8-bit"
    ):
        converted(text, w=np.full((4, 3), -128, np.int8), n=np.int8(0), **CODES)


def test_other_codes_and_inputs_are_refused() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    with pytest.raises(TargetError, match="litert takes codes of 8 bits with one scale: 'q' has others"):
        converted(text, s=np.float32(1), z=np.uint16(0))
    with pytest.raises(TargetError, match="litert takes no input of the type float64: 'x'"):
        converted("g (double[2,4] x) => (double[2,4] y) { y = Relu(x) }")
    with pytest.raises(TargetError, match="no rule for the output 'y', which is another value"):
        converted("g (float[2,4] x) => (float[2,4] y) { y = Identity(x) }")


def test_the_file_is_aligned_and_stores_equal_vectors_once(qdq: onnx.ModelProto) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs pip install 'ptqc[litert]'")
    from ai_edge_litert import schema_py_generated as schema

    from ptqc.codegen.litert.flatbuffer import ALIGNMENT, serialized

    graph = tflite_graph(qdq, RULES)
    data = serialized(graph)
    assert data[4:8] == b"TFL3"
    model = schema.Model.GetRootAs(data)
    start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    buffers = [model.Buffers(index) for index in range(model.BuffersLength())]
    arrays = [each.DataAsNumpy() for each in buffers if not each.DataIsNone()]
    places = [each.__array_interface__["data"][0] for each in arrays]
    assert {(place - start) % ALIGNMENT for place in places} == {0}
    assert 3 < len(set(places)) == len({each.tobytes() for each in arrays})


def test_the_file_is_the_same_whenever_it_is_written(qdq: onnx.ModelProto) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs pip install 'ptqc[litert]'")
    from ptqc.codegen.litert.flatbuffer import serialized

    assert serialized(tflite_graph(qdq, RULES)) == serialized(tflite_graph(qdq, RULES))
