"""Operators that ONNX Runtime's optimizer writes, against ONNX Runtime on them."""

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import noise
from onnx import helper, numpy_helper
from rewriting import operators

from ptqc.notes import Level, Note
from ptqc.passes.base import Feeds
from ptqc.passes.canonicalize.foreign_types import ForeignTypes
from ptqc.passes.canonicalize.fused import Fused
from ptqc.passes.runner import run_rewrites

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)


def parsed(graph: str, attributes: dict[str, Any] | None = None, **constants: np.ndarray) -> ir.Model:
    """A model in ONNX's text form whose last node has these attributes as well."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> {graph}')
    proto.graph.node[-1].attribute.extend(helper.make_attribute(*item) for item in (attributes or {}).items())
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return ir.from_proto(proto)


def split(model: ir.Model, **feeds: np.ndarray) -> list[Note]:
    """Apply the pass; the pipeline compares the outputs before and after."""
    probe: list[Feeds] = [feeds]
    return run_rewrites(model, (ForeignTypes(), Fused()), probe)


ACTIVATIONS = {
    "Relu": [],
    "Tanh": [],
    "Sigmoid": [],
    "LeakyRelu": [0.2],
    "Clip": [-0.5, 0.5],
    "HardSigmoid": [0.3, 0.4],
}


@pytest.mark.parametrize("added", ["", ", z"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_convolutions_with_their_activation(activation: str, added: str) -> None:
    model = parsed(
        f"""g (float[N, 4, 6, 6] x, float[N, 6, 3, 3] z) => (float[N, 6, 3, 3] y) {{
            y = com.microsoft.FusedConv <group = 2, strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, b{added})
        }}""",
        {"activation": activation, **({"activation_params": p} if (p := ACTIVATIONS[activation]) else {})},
        w=noise(6, 2, 3, 3),
        b=noise(6),
    )
    split(model, x=noise(2, 4, 6, 6), z=noise(2, 6, 3, 3, seed=1))
    assert operators(model) == ["Conv", *(["Add"] if added else []), activation]
    assert "com.microsoft" not in model.opset_imports


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "HardSigmoid"])
def test_products_with_their_activation(activation: str) -> None:
    parameters = dict(zip(("activation_alpha", "activation_beta"), ACTIVATIONS[activation], strict=False))
    model = parsed(
        """g (float[N, 4] x) => (float[N, 3] y) {
            y = com.microsoft.FusedGemm <alpha = 0.5, beta = 2.0, transB = 1> (x, w, b)
        }""",
        {"activation": activation, **parameters},
        w=noise(3, 4),
        b=noise(3),
    )
    split(model, x=noise(2, 4))
    assert operators(model) == ["Gemm", activation]


def test_an_unknown_activation_stays_with_a_reason() -> None:
    graph = 'g (float[N, 4] x) => (float[N, 3] y) { y = com.microsoft.FusedGemm <activation = "Softsign"> (x, w) }'
    notes = split(parsed(graph, w=noise(4, 3)), x=noise(2, 4))
    assert [(note.level, "'Softsign' is not known" in note.message) for note in notes] == [(Level.SKIPPED, True)]


@pytest.mark.parametrize(("shape_a", "shape_b"), [((2, 5, 4), (2, 5, 3)), ((5, 4), (2, 5, 3))])
def test_products_of_exchanged_axes_with_a_factor(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    model = parsed(
        f"""g (float{list(shape_a)} a, float{list(shape_b)} b) => (float[2, 4, 3] y) {{
            y = com.microsoft.FusedMatMul <transA = 1, alpha = 0.125> (a, b)
        }}"""
    )
    split(model, a=noise(*shape_a), b=noise(*shape_b, seed=1))
    assert operators(model) == ["Transpose", "MatMul", "Mul"]


def test_exchanged_axes_of_the_batch_stay_with_a_reason() -> None:
    model = parsed(
        """g (float[2, 5, 4] a, float[5, 4, 3] b) => (float[5, 2, 3] y) {
            y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b)
        }"""
    )
    assert "axes of the batch" in split(model, a=noise(2, 5, 4), b=noise(5, 4, 3))[0].message


@pytest.mark.parametrize("call", ["Gelu(x)", "BiasGelu(x, b)", "FastGelu(x)", "FastGelu(x, b)", "QuickGelu(x)"])
def test_activations_of_transformers(call: str) -> None:
    model = parsed(f"g (float[N, 8] x) => (float[N, 8] y) {{ y = com.microsoft.{call} }}", b=noise(8))
    split(model, x=noise(64, 8, scale=2.0))
    assert not [node for node in model.graph if node.domain]


@pytest.mark.parametrize(
    "call",
    [
        "y, m, d, s = com.microsoft.SkipLayerNormalization(x, k, g, b)",
        "y, m, d, s = com.microsoft.SkipLayerNormalization(x, k, g, b, c)",
        "y, m, d, s = com.microsoft.SkipLayerNormalization(x, k, g)",
        "y, m, d, s = com.microsoft.SkipSimplifiedLayerNormalization(x, k, g)",
        "y, m, d, s = com.microsoft.SkipSimplifiedLayerNormalization(x, k, g, c)",
    ],
)
def test_normalized_sums_and_the_sum_itself(call: str) -> None:
    vectors = {name: noise(8, seed=i) for i, name in enumerate("gbc")}
    model = parsed(
        f"g (float[N, T, 8] x, float[N, T, 8] k) => (float[N, T, 8] y, float[N, T, 8] s) {{ {call} }}",
        {"epsilon": 1e-3},
        **vectors,
    )
    split(model, x=noise(2, 3, 8), k=noise(2, 3, 8, seed=5))
    assert not [node for node in model.graph if node.domain]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("w, , words, places, , g, b", "y, n"),
        ("w, k, words, places, kinds, g, b", "y, n"),
        ("w, k, words, places, kinds, g, b, m", "y, n"),
        ("w, k, words, places, kinds, g, b, m, p", "y, n, s"),
    ],
)
def test_normalized_embeddings(inputs: str, outputs: str) -> None:
    tables = {"words": noise(20, 8), "places": noise(6, 8, seed=1), "kinds": noise(2, 8, seed=2)}
    declared = "float[N, T, 8] y, int32[N] n" + (", float[N, T, 8] s" if "s" in outputs else "")
    values = [f"int32[N, T] {name}" for name in ("w", "k", "m", "p") if name in inputs.split(", ")]
    model = parsed(
        f"g ({', '.join(values)}) => ({declared}) {{ {outputs} = com.microsoft.EmbedLayerNormalization({inputs}) }}",
        {"epsilon": 1e-5, **({"mask_index_type": 1} if "m" in inputs.split(", ") else {})},
        **tables,
        g=noise(8, seed=3),
        b=noise(8, seed=4),
    )
    rng = np.random.default_rng(0)
    below = {"w": 20, "k": 2, "p": 6}
    feeds = {"m": MASK} | {name: rng.integers(0, end, MASK.shape) for name, end in below.items()}
    split(model, **{str(v.name): feeds[str(v.name)].astype(np.int32) for v in model.graph.inputs})
    assert not [node for node in model.graph if node.domain]


def attention(mask: str, batch: str = "N", **attributes: int) -> ir.Model:
    declared = {"m": f", int32[{batch}, T] m", "n": f", int32[{batch}] n"}.get(mask, "")
    return parsed(
        f"""g (float[{batch}, T, 8] x{declared}) => (float[{batch}, T, 8] y) {{
            y = com.microsoft.Attention <num_heads = 2> (x, w, b, {mask})
        }}""",
        attributes,
        w=noise(8, 24),
        b=noise(24),
    )


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", ["", "m", "n"])
def test_joined_weights_of_attention_become_a_layer(mask: str, unidirectional: int) -> None:
    model = attention(mask, unidirectional=unidirectional)
    masks = {"m": MASK, "n": MASK.sum(1).astype(np.int32)}
    split(model, x=noise(2, 5, 8), **({mask: masks[mask]} if mask else {}))
    assert operators(model)[0] == "MatMul"
    assert operators(model)[-1] == "MultiHeadAttention"


def test_a_mask_that_is_summed_up_counts_the_words() -> None:
    """As the optimizer writes it; behind sums of embeddings, the sizes of x are not known to be those of the mask."""
    model = parsed(
        """g (float[A, T, 8] x, int32[N, T] m) => (float[A, T, 8] y) {
            n = ReduceSum <keepdims = 0> (m, last)
            y = com.microsoft.Attention <num_heads = 2> (x, w, b, n)
        }""",
        w=noise(8, 24),
        b=noise(24),
        last=np.array([1]),
    )
    split(model, x=noise(2, 5, 8), m=MASK)
    assert operators(model)[-1] == "MultiHeadAttention"


def test_a_mask_of_bounds_is_not_taken_for_counts() -> None:
    """Where no size is declared, it may have one end for each sample, or an end and a start."""
    model = attention("n", batch="?")
    notes = split(model, x=noise(2, 5, 8), n=np.array([5, 2, 0, 0], np.int32))
    assert "mask have a form of their own" in notes[0].message
    assert operators(model) == ["Attention"]


def test_attention_over_a_cache_stays_with_a_reason() -> None:
    model = parsed(
        """g (float[N, T, 8] x, float[2, N, 2, P, 4] p) => (float[N, T, 8] y, float[2, N, 2, A, 4] q) {
            y, q = com.microsoft.Attention <num_heads = 2> (x, w, b, , p)
        }""",
        w=noise(8, 24),
        b=noise(24),
    )
    notes = split(model, x=noise(2, 5, 8), p=noise(2, 2, 2, 3, 4))
    assert "attends to a cache" in notes[0].message
    assert operators(model) == ["Attention"]


def test_what_no_standard_operator_computes_stays_with_a_note() -> None:
    graph = "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)"
    model = parsed(f"g (float[N, T, 8] x) => (float[N, T, 8] y) {{ {graph} }}")
    assert [note.level for note in split(model, x=noise(2, 5, 8))] == [Level.SKIPPED]
    assert model.opset_imports["com.microsoft"] == 1
