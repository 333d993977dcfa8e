import numpy as np
import pytest
from graphs import noise, parse
from rewriting import rewrite

from ptqc.ir.layers import find_layers
from ptqc.passes.canonicalize.fold_gemm_factors import FoldGemmFactors


@pytest.mark.parametrize("bias", [(3,), (1, 3), (1,), (), None])
@pytest.mark.parametrize("turned", [0, 1])
def test_both_factors_fold(turned: int, bias: tuple[int, ...] | None) -> None:
    value = "" if bias is None else ", b"
    graph = f"""g (float[N, 4] x) => (float[N, 3] y) {{
        y = Gemm <alpha = 0.3, beta = -2.5, transB = {turned}> (x, w{value})
    }}"""
    constants = {"w": noise(3, 4) if turned else noise(4, 3)} | ({} if bias is None else {"b": noise(*bias)})
    model = parse(graph, **constants)
    notes = rewrite(model, FoldGemmFactors(), x=noise(2, 4))
    assert [note.message for note in notes] == ["alpha = 0.3 folded", "beta = -2.5 folded"]
    assert set(model.graph[0].attributes) == {"transB"}
    assert bias not in ((3,), (1, 3), None) or len(find_layers(model)) == 1


def test_a_transposed_input_keeps_its_attribute() -> None:
    graph = "g (float[4, 2] x) => (float[2, 3] y) { y = Gemm <alpha = 3.0, transA = 1> (x, w, b) }"
    model = parse(graph, w=noise(4, 3), b=noise(2, 3))
    rewrite(model, FoldGemmFactors(), x=noise(4, 2))
    assert set(model.graph[0].attributes) == {"transA"}


def test_computed_operands_keep_their_factors() -> None:
    graph = """g (float[2, 4] x, float[4, 3] w, float[3] b) => (float[2, 3] y) {
        y = Gemm <alpha = 2.0, beta = 3.0> (x, w, b)
    }"""
    model = parse(graph)
    notes = rewrite(model, FoldGemmFactors(), x=noise(2, 4), w=noise(4, 3), b=noise(3))
    assert [note.message for note in notes] == [
        "alpha = 2 stays: w, which it multiplies, is computed",
        "beta = 3 stays: b, which it multiplies, is computed",
    ]
    assert set(model.graph[0].attributes) == {"alpha", "beta"}


def test_a_computed_bias_leaves_alpha_to_fold() -> None:
    graph = "g (float[2, 4] x, float[3] b) => (float[2, 3] y) { y = Gemm <alpha = 2.0, beta = 3.0> (x, w, b) }"
    model = parse(graph, w=noise(4, 3))
    rewrite(model, FoldGemmFactors(), x=noise(2, 4), b=noise(3))
    assert set(model.graph[0].attributes) == {"beta"}


def test_a_bias_times_zero_is_dropped() -> None:
    graph = "g (float[2, 4] x, float[3] b) => (float[2, 3] y) { y = Gemm <beta = 0.0> (x, w, b) }"
    model = parse(graph, w=noise(4, 3))
    rewrite(model, FoldGemmFactors(), x=noise(2, 4), b=np.full(3, np.inf, np.float32))
    assert len(model.graph[0].inputs) == 2


def test_a_shared_weight_stays_for_its_other_user() -> None:
    graph = """g (float[N, 4] x) => (float[N, 3] y) {
        a = Gemm <alpha = 2.0> (x, w)
        b = Gemm(x, w)
        y = Add(a, b)
    }"""
    model = parse(graph, w=noise(4, 3))
    rewrite(model, FoldGemmFactors(), x=noise(2, 4))
    assert {layer.weight for layer in find_layers(model)} == {"w", "a_weight"}
