import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.rewrite.linear_layers import LinearLayers


@pytest.mark.parametrize("add", ["Add(h, b)", "Add(b, h)"])
@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_matmul_and_bias_become_gemm(add: str, shape: tuple[int, ...]) -> None:
    model = parse(
        f"g (float[N, 4] x) => (float[N, 3] y) {{ h = MatMul(x, w)  y = {add} }}", w=noise(4, 3), b=noise(*shape)
    )
    rewrite(model, LinearLayers(), x=noise(2, 4))
    assert operators(model) == ["Gemm"]


def test_other_ranks_stay_with_a_reason() -> None:
    graph = "g (float[N, T, 4] x) => (float[N, T, 3] y) { h = MatMul(x, w)  y = Add(h, b) }"
    notes = rewrite(parse(graph, w=noise(4, 3), b=noise(3)), LinearLayers(), x=noise(2, 5, 4))
    assert "this has 3" in notes[0].message


@pytest.mark.parametrize("shape", [(1,), (2, 1), (2, 3)])
def test_what_is_no_bias_stays(shape: tuple[int, ...]) -> None:
    graph = "g (float[2, 4] x) => (float[2, 3] y) { h = MatMul(x, w)  y = Add(h, b) }"
    assert rewrite(parse(graph, w=noise(4, 3), b=noise(*shape)), LinearLayers(), x=noise(2, 4)) == []
