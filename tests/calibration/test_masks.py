"""Inputs that mask: followed to a softmax or to the mask of a fused attention, and not through a layer."""

import onnx_ir as ir
import pytest
from graphs import parse

from ptqc.calibration.inputs import is_mask

FOUND = {
    "chosen by booleans": "c = Cast<to=9>(m) s = Where(c, scores, low) y = Softmax(s)",
    "added": "f = Cast<to=1>(m) s = Add(f, scores) y = Softmax(s)",
    "taken apart": "g = Gather(m, zero) f = Cast<to=1>(g) s = Add(f, scores) y = Softmax(s)",
    "fused": "y = com.microsoft.MultiHeadAttention<num_heads=2>(scores, scores, scores, , m)",
}
NOT_FOUND = {
    "token numbers": "e = Gather(table, m) y = Softmax(e)",
    "behind a layer": "f = Cast<to=1>(m) h = MatMul(f, w) y = Softmax(h)",
    "only its size": "s = Shape(m) f = Cast<to=1>(s) y = Softmax(f)",
    "a shape": "r = Reshape(scores, m) y = Softmax(r)",
    "queries": "y = com.microsoft.MultiHeadAttention<num_heads=2>(m, scores, scores)",
    "no softmax": "f = Cast<to=1>(m) y = Add(f, scores)",
}


def given(nodes: str) -> ir.Value:
    domains = '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>'
    model = ir.from_onnx_text(f"{domains} g (int64[4] m) => (float[4,4] y) <int64[1] zero = {{0}}> {{ {nodes} }}")
    return model.graph.inputs[0]


@pytest.mark.parametrize("nodes", FOUND.values(), ids=FOUND)
def test_masks(nodes: str) -> None:
    assert is_mask(given(nodes))


@pytest.mark.parametrize("nodes", NOT_FOUND.values(), ids=NOT_FOUND)
def test_other_integers(nodes: str) -> None:
    assert not is_mask(given(nodes))


def test_what_a_branch_does_says_nothing() -> None:
    graph = """g (int64[4] m, bool c) => (float[4] y) {
        y = If(c) <then_branch = a () => (float[4] p) { f = Cast<to=1>(m) p = Softmax(f) },
                   else_branch = b () => (float[4] n) { n = Cast<to=1>(m) }>
    }"""
    assert not is_mask(parse(graph).graph.inputs[0])
