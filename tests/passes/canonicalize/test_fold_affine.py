import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.fold_affine import FoldAffine


@pytest.mark.parametrize("body", ["Mul(h, c)", "Mul(c, h)", "Add(h, c)", "Add(c, h)", "Sub(h, c)", "Div(h, c)"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (1, 3, 1, 1)])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_constants_per_channel_fold(operator: str, body: str, shape: tuple[int, ...]) -> None:
    graph = f"g (float[N, 3, 5, 5] x) => (float[N, 3, H, W] y) {{ h = {operator}(x, w, b)  y = {body} }}"
    constant = np.asarray(np.abs(noise(*shape)) + 0.5, np.float32)
    model = parse(graph, w=noise(3, 3, 3, 3), b=noise(3), c=constant)
    rewrite(model, FoldAffine(), x=noise(2, 3, 5, 5))
    assert operators(model) == [operator]


def test_chains_fold_one_after_the_other() -> None:
    graph = "g (float[N, 3, 5] x) => (float[N, 3, 5] y) { h = Conv(x, w)  a = Mul(h, c)  b = Add(a, c)  y = Relu(b) }"
    model = parse(graph, w=noise(3, 3, 1), c=noise(3, 1))
    rewrite(model, FoldAffine(), x=noise(2, 3, 5))
    assert operators(model) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("body", "constant", "reason"),
    [
        ("Mul(h, c)", noise(1, 1, 5), "one value per channel"),
        ("Mul(h, c)", noise(5), "one value per channel"),
        ("Add(h, c)", np.full((3, 1), -np.inf, np.float32), "not finite"),
        ("Div(h, c)", np.zeros((3, 1), np.float32), "not finite"),
    ],
)
def test_other_constants_stay_with_a_reason(body: str, constant: np.ndarray, reason: str) -> None:
    model = parse(
        f"g (float[N, 3, 5] x) => (float[N, 3, 5] y) {{ h = Conv(x, w)  y = {body} }}", w=noise(3, 3, 1), c=constant
    )
    notes = rewrite(model, FoldAffine(), x=noise(2, 3, 5))
    assert reason in notes[0].message


@pytest.mark.parametrize("body", ["Sub(c, h)", "Div(c, h)"])
def test_what_is_no_scaling_stays(body: str) -> None:
    model = parse(
        f"g (float[N, 3, 5] x) => (float[N, 3, 5] y) {{ h = Conv(x, w)  y = {body} }}", w=noise(3, 3, 1), c=noise(3, 1)
    )
    assert rewrite(model, FoldAffine(), x=noise(2, 3, 5)) == []
