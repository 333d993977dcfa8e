"""The range of pixels that a normalization at the head of the graph tells."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse
from numpy.typing import ArrayLike

from ptqc.calibration.synthetic import COMMON, PixelRange, stated_range

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def column(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, np.float32).reshape(-1, 1, 1)


def stated(body: str, kind: str = "float[N,3,8,8]", /, **constants: np.ndarray) -> PixelRange | None:
    model = parse(f"g ({kind} x) => (float[N,3,8,8] y) {{ {body} }}", **constants)
    return stated_range(model.graph.inputs[0])


@pytest.mark.parametrize(
    ("body", "constants", "low", "high"),
    [
        ("a = Sub(x, m) y = Div(a, s)", {"m": column(MEAN), "s": column(STD)}, 0, 1),
        ("a = Sub(x, m) y = Div(a, s)", {"m": column(MEAN * 255), "s": column(STD * 255)}, 0, 255),
        ("a = Mul(s, x) y = Add(a, m)", {"m": column(-1), "s": column(1 / 127.5)}, 0, 255),
        ("a = Div(x, s) b = Sub(a, m) y = Relu(b)", {"m": column(MEAN), "s": column(255)}, 0, 255),
        ("y = Sub(x, m)", {"m": column([103.9, 116.8, 123.7])}, 0, 255),
        ("y = Mul(x, s)", {"s": column(1 / 255)}, 0, 255),
        ("a = Mul(x, s) y = Add(a, m)", {"m": column(0.5), "s": column(0.5)}, -1, 1),
    ],
    ids=["fractions", "bytes", "to -1..1", "scaled first", "mean only", "scale only", "undone"],
)
def test_a_normalization_tells_the_range(body: str, constants: dict[str, np.ndarray], low: float, high: float) -> None:
    result = stated(body, **constants)
    assert result is not None
    np.testing.assert_allclose(result.low, low, atol=1e-6)
    np.testing.assert_allclose(result.high, high, atol=1e-6)


def test_casts_and_transposes_are_looked_through() -> None:
    result = stated("a = Transpose<perm=[0,3,1,2]>(x) y = Mul(a, s)", "float[N,8,8,3]", s=column(1 / 255))
    assert result is not None
    assert result.high == 255


def test_a_batch_normalization_gives_mean_and_spread_by_channel() -> None:
    mean, variance = np.array([1, 2, 3], np.float32), np.array([4, 9, 16], np.float32)
    ones = np.ones(3, np.float32)
    result = stated("y = BatchNormalization(x, o, o, m, v)", o=ones, m=mean, v=variance)
    assert result is not None
    pixels = np.random.default_rng(0).normal(0.45, 0.25, (3, 100, 100))  # mean and spread of photographs
    taken = result.apply(pixels)
    np.testing.assert_allclose(taken.mean((1, 2)), mean, atol=0.2)
    np.testing.assert_allclose(taken.std((1, 2)), np.sqrt(variance), rtol=0.05)


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("y = Relu(x)", {}),
        ("y = Mul(x, x)", {}),
        ("a = Relu(x) y = Mul(a, s)", {"s": column(1 / 255)}),
        ("y = Sub(s, x)", {"s": column(1)}),
        ("a = Mul(x, s) b = Relu(x) y = Add(a, b)", {"s": column(1 / 255)}),
    ],
    ids=["none", "by itself", "too late", "reversed", "one of two readers"],
)
def test_anything_else_tells_nothing(body: str, constants: dict[str, np.ndarray]) -> None:
    assert stated(body, **constants) is None


def test_constants_may_be_nodes() -> None:
    model = parse("g (float[N,3,8,8] x) => (float[N,3,8,8] y) { s = Constant<value_float=255.0>() y = Div(x, s) }")
    assert isinstance(model, ir.Model)
    result = stated_range(model.graph.inputs[0])
    assert result is not None
    assert result.high == 255


def test_a_range_places_pixels_by_channel() -> None:
    result = PixelRange(np.array([0.0, -1.0]), np.array([1.0, 3.0]), "")
    taken = result.apply(np.array([0.0, 0.5], np.float32).reshape(1, 1, 2).repeat(2, 0))
    np.testing.assert_allclose(taken.reshape(2, 2), np.array([[0, 0.5], [-1, 1]]))
    assert COMMON[0].apply(np.full((1, 1, 1), 0.45, np.float32)).item() == pytest.approx(0, abs=1e-6)
