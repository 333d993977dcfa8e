import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import noise
from onnx import numpy_helper

from ptqc.codegen.program.expansion import expanded
from ptqc.execution.onnxruntime import Feeds, run

WIDTH = 16
PARTS = f"float[N, S, {WIDTH}] q, float[N, T, {WIDTH}] k, float[N, T, {WIDTH}] v"
# What the operator is given beside its parts, and its attributes.
CASES = {
    "plain": ("", "", ""),
    "scaled": ("", "", ", scale = 0.4"),
    "biased": ("", ", bias", ""),
    "causal": ("", "", ", unidirectional = 1"),
    "padded on the left": (", int32[N, T] mask", ", , mask", ", mask_filter_value = -3.4e38"),
    "padded, causal and scores added": (
        ", int32[N, T] mask, float[1, 4, S, T] more",
        ", bias, mask, more",
        ", unidirectional = 1",
    ),
}
FEEDS: Feeds = {
    "q": noise(2, 5, WIDTH),
    "k": noise(2, 5, WIDTH, seed=1),
    "v": noise(2, 5, WIDTH, seed=2),
    "mask": np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], np.int32),
    "more": noise(1, 4, 5, 5, seed=3),
}


def attention(inputs: str, value: str, attributes: str, presents: bool = False) -> ir.Model:
    names, more = (", c, d", ", float[N, 4, Q, 4] c, float[N, 4, Q, 4] d") if presents else ("", "")
    body = f"y{names} = com.microsoft.MultiHeadAttention <num_heads = 4{attributes}> (q, k, v{value})"
    header = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>'
    proto = onnx.parser.parse_model(f"{header} g ({PARTS}{inputs}) => (float[N, S, {WIDTH}] y{more}) {{ {body} }}")
    if "bias" in value:
        proto.graph.initializer.append(numpy_helper.from_array(noise(3 * WIDTH, seed=4), "bias"))
    return ir.from_proto(proto)


@pytest.mark.parametrize("case", CASES)
def test_gives_what_onnxruntime_gives(case: str) -> None:
    model = attention(*CASES[case])
    feeds = {str(value.name): FEEDS[str(value.name)] for value in model.graph.inputs}
    written = expanded(model)
    assert not any(node.domain for node in written.graph)
    assert any(node.domain for node in model.graph)
    counted = slice(2 if "padded" in case else 0, None)  # what a word that is padding gets means nothing
    np.testing.assert_allclose(run(written, feeds)["y"][:, counted], run(model, feeds)["y"][:, counted], atol=1e-5)


@pytest.mark.parametrize("attributes", ["", ", unidirectional = 1"])
@pytest.mark.parametrize("bias", ["", "bias"])
def test_a_cache_grows(attributes: str, bias: str) -> None:
    model = attention(", float[N, 4, P, 4] a, float[N, 4, P, 4] b", f", {bias}, , , a, b", attributes, presents=True)
    feeds = {**{name: FEEDS[name] for name in "qkv"}, "a": noise(2, 4, 3, 4, seed=5), "b": noise(2, 4, 3, 4, seed=6)}
    written = expanded(model)
    assert not any(node.domain for node in written.graph)
    for name, array in run(model, feeds).items():
        np.testing.assert_allclose(run(written, feeds)[name], array, atol=1e-5)


def test_a_cache_with_room_for_more_stays_as_it_is() -> None:
    past = "float[N, 4, P, 4] a, float[N, 4, P, 4] b, int32[1] length"
    model = attention(f", {past}", ", , , , a, b, length", "")
    assert [node.op_type for node in expanded(model).graph] == ["MultiHeadAttention"]
