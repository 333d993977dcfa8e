"""Memory of a run: what lives at each step, by hand, and the choices of sites that change it."""

import onnx_ir as ir
import pytest
from graphs import noise, parse
from test_cost_model import MIXED, plan_of

from ptqc.passes.allocate.memory_model import END, MemoryModel

SHAPES = {"x": (1, 4, 8, 8), "a": (1, 4, 8, 8), "ar": (1, 4, 8, 8), **dict.fromkeys("pyz", (1, 4, 4, 4))}
# Of both convolutions with their biases.
FLOAT_WEIGHTS = 2 * 4 * (144 + 4)
# Accumulators and columns of 64 and of 16 positions, 9 taps of 4 channels.
FIRST, SECOND = 4 * 256 + 36 * 64, 4 * 64 + 36 * 16


def mixed_model() -> ir.Model:
    return parse(MIXED, w1=noise(4, 4, 3, 3), b1=noise(4), w2=noise(4, 4, 3, 3), b2=noise(4))


@pytest.fixture
def mixed() -> MemoryModel:
    model = mixed_model()
    return MemoryModel.of(model, plan_of(model), SHAPES)


@pytest.mark.parametrize(
    ("quantized", "weights", "steps"),
    [
        # The input is the caller's; y is kept until it is handed over.
        ((), 0, (1024, 1024 + 256, 256 + 256, 3 * 256, 2 * 256)),
        # y is an output, and z reads p: both are there as real values, too.
        (
            ("x", "ar", "p", "y"), 2 * 3 * 144,
            (256 + 256 + FIRST, 256 + 64, 64 + 256 + 64 + SECOND, 64 + 256 + 64 + 256, 64 + 2 * 256),
        ),
        # What a kernel in float makes is there twice while it becomes codes, and as real values for those who read it.
        (("ar", "p"), 0, (1024 + 256, 256 + 64, 64 + 256 + 256, 64 + 3 * 256, 2 * 256)),
        # The input as codes has a copy as real values for the layer that computes in float.
        (("x",), 0, (256 + 1024 + 1024, 1024 + 256, 256 + 256, 3 * 256, 2 * 256)),
    ],
)  # fmt: skip
def test_what_lives_at_each_step(
    mixed: MemoryModel, quantized: tuple[str, ...], weights: int, steps: tuple[int, ...]
) -> None:
    assert mixed.steps == ("a", "p", "y", "z", END)
    assert tuple(mixed.running(quantized)) == steps
    assert mixed.loaded(quantized) == FLOAT_WEIGHTS - weights
    assert mixed.peak(quantized) == FLOAT_WEIGHTS - weights + max(steps)


def test_a_view_keeps_what_it_looks_at() -> None:
    model = parse(
        """g (float[1,4,4,4] x) => (float[1,64] y) {
            r = Relu(x)
            f = Flatten(r)
            e = Exp(x)
            g = Flatten(e)
            y = Add(f, g)
        }"""
    )
    shapes = {**dict.fromkeys("xre", (1, 4, 4, 4)), **dict.fromkeys("fgy", (1, 64))}
    result = MemoryModel.of(model, plan_of(model), shapes).running(())
    assert result == [256, 256, 512, 512, 768, 256]
