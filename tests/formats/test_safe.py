"""Pairs of 8-bit codes never saturate, and are the nearest that do not."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats import Integer
from ptqc.formats.safe import LARGEST, LARGEST_SUM, Safe, nearest_pairs, saturates

WORD = range(-(2**15), 2**15)
FORM = Safe(8)
EVERY = np.array([p for p in itertools.product(range(-LARGEST, LARGEST + 1), repeat=2) if abs(sum(p)) <= LARGEST_SUM])


def test_the_limit_is_what_fits_in_16_bits() -> None:
    """Inputs of 0 or 255 drive a pair of products to its limits."""
    for pair in ([127, 1], [64, 64], [-127, -1], [127, -127], [-64, -64]):
        assert not saturates(np.array([pair], np.int8), 0)
        assert all(int(np.dot(x, pair)) in WORD for x in itertools.product((0, 255), repeat=2))
    for pair in ([127, 2], [65, 64], [-127, -2]):
        assert saturates(np.array([pair], np.int8), 0)
        assert any(int(np.dot(x, pair)) not in WORD for x in itertools.product((0, 255), repeat=2))


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(np.float32, (5, 2), elements=st.floats(-200, 200, width=32)), st.floats(-0.9, 0.9), st.floats(0.1, 10)
)
def test_pairs_are_the_nearest_of_all(ratio: np.ndarray, correlation: float, second: float) -> None:
    """By brute force over all pairs, without a metric and by one; what a metric trades off is rounded to the limit."""
    away = np.square(ratio[:, None] - EVERY).sum(-1).min(1)
    np.testing.assert_allclose(np.square(ratio - nearest_pairs(ratio, None)).sum(-1), away, rtol=1e-4, atol=1e-3)
    root = np.sqrt(second)
    metric = np.array([[1, correlation * root], [correlation * root, second]], np.float32)
    result = nearest_pairs(ratio[None], metric[None])[0]
    assert not saturates(result.astype(np.int8), 0)
    clipped = np.abs(np.clip(np.rint(ratio), -LARGEST, LARGEST).sum(-1)) > LARGEST_SUM

    def cost(error: np.ndarray) -> np.ndarray:
        return np.einsum("...i,ij,...j->...", error, metric.astype(float), error)

    on_limit = EVERY[np.abs(EVERY.sum(1)) == LARGEST_SUM]
    least = cost(ratio[:, None].astype(float) - on_limit).min(1)
    np.testing.assert_allclose(cost(ratio - result)[clipped], least[clipped], rtol=1e-3, atol=1e-2)


def test_its_scales_lose_less_than_those_of_free_codes() -> None:
    rows = np.random.default_rng(0).standard_normal((8, 200)).astype(np.float32)
    even = np.ones((1, 200), np.float32)

    def error(scale: np.ndarray) -> float:
        codes = nearest_pairs(rows.reshape(8, -1, 2) / scale[:, None, None], None).reshape(rows.shape)
        return float(np.square(rows - codes * scale[:, None]).sum())

    own, free, seven = (form.grid(rows, even) for form in (FORM, Integer(8), Integer(7)))
    assert error(own.scale) < 0.5 * error(free.scale)
    assert error(own.scale) < 0.5 * np.square(rows - seven.rounded(rows) * seven.scale[:, None]).sum()
    assert not saturates(own.rounded(rows), 0)


@pytest.mark.parametrize("shape", [(6, 4, 3, 3), (6, 8), (2, 16, 1, 5)])
def test_pairs_are_inputs_of_one_tap(shape: tuple[int, ...]) -> None:
    codes = np.zeros(shape, np.int8)
    codes[0, :2] = 100
    assert saturates(codes, 0)
    codes[:] = 0
    codes[0, 1:3] = 100
    assert not saturates(codes, 0)


def test_channels_may_be_the_last_axis() -> None:
    codes = np.zeros((4, 6), np.int8)
    codes[0, 0] = codes[0, 1] = 100
    assert saturates(codes, 0)
    assert not saturates(codes, 1)


def test_what_may_saturate() -> None:
    assert [form.may_saturate for form in (Integer(7), Integer(8), FORM)] == [False, True, False]
    assert FORM.fits(6, 10)
    assert not FORM.fits(3, 10)
