from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptqc.calibration import ranges
from ptqc.calibration.ranges import METHODS, RangeObserver, affine_params, choose_range, power_params
from ptqc.errors import UsageError

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
RNG = np.random.default_rng(0)
DISTRIBUTIONS = {
    "normal": RNG.normal(size=100_000),
    "shifted": RNG.normal(2, 1, size=100_000),
    "laplace": RNG.laplace(size=100_000),
    "relu": np.maximum(RNG.normal(size=100_000), 0),
    "negative": -np.abs(RNG.normal(size=100_000)),
    "uniform": RNG.uniform(-1, 3, size=100_000),
    "outlier": np.append(RNG.normal(size=100_000), [60.0, -25.0]),
}


def observed(values):
    observer = RangeObserver()
    observer.update(np.asarray(values, np.float32))
    return observer


def quantized(values, low, high, bits):
    scale, zero = affine_params(low, high, bits)
    codes = np.clip(np.rint(values / np.float64(scale)) + zero, 0, 2**bits - 1)
    return (codes - zero) * np.float64(scale)


def squared_error(values, low, high, bits):
    return float(np.mean((quantized(values, low, high, bits) - values) ** 2))


@given(FINITE, FINITE, st.integers(2, 16), st.booleans())
def test_scale_and_zero_point_are_always_usable(a, b, bits, signed):
    low, high = min(a, b), max(a, b)
    scale, zero = affine_params(low, high, bits, signed)
    bottom = -(2 ** (bits - 1)) if signed else 0
    top = bottom + 2**bits - 1
    assert scale.dtype == np.float32
    assert np.isfinite(scale)
    assert scale >= np.finfo(np.float32).tiny
    assert bottom <= zero <= top
    if low >= 0:
        assert zero == bottom
    elif high <= 0 and float(scale) > np.finfo(np.float32).tiny:
        assert zero == top


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_scale_that_is_a_power_of_two_is_the_better_one_of_its_neighbours(name, bits):
    values = DISTRIBUTIONS[name]
    observer = observed(values)
    low, high = choose_range(observer, "mse", bits)
    scale, zero = power_params(observer, low, high, bits)
    free, _ = affine_params(low, high, bits)
    assert np.frexp(scale)[0] == 0.5
    assert 0.5 < scale / free < 2.0001

    def error(step):
        place = np.clip(np.rint(-min(low, 0) / step), 0, 2**bits - 1)
        codes = np.clip(np.rint(values / np.float64(step)) + place, 0, 2**bits - 1)
        return float(np.mean(((codes - place) * np.float64(step) - values) ** 2))

    below = 2.0 ** np.floor(np.log2(free))
    assert zero == np.clip(np.rint(-min(low, 0) / scale), 0, 2**bits - 1)
    assert error(scale) <= min(error(below), error(2 * below)) * 1.02


def test_what_was_never_seen_has_a_power_of_two_as_scale():
    assert power_params(RangeObserver(), 0.0, 0.0, 8) == (np.float32(1), 0)


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("ends", [(LOWEST, -LOWEST), (LOWEST, 0), (LOWEST, 1e38), (-1e38, -LOWEST), (0, -LOWEST)])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_every_code_stands_for_a_number_of_float32(ends, bits):
    low, high = ends
    scale, zero = affine_params(low, high, bits)
    assert np.isfinite(np.array([0 - zero, 2**bits - 1 - zero], np.float32) * scale).all()


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.integers(2, 16))
def test_the_codes_span_the_range_with_zero_among_them(a, b, bits):
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    if high - low < 1e-6:
        return
    ends = quantized(np.array([low, 0.0, high]), low, high, bits)
    scale = float(affine_params(low, high, bits)[0])
    assert ends[1] == 0
    np.testing.assert_allclose(ends, [low, 0, high], atol=0.5 * scale * (1 + 1e-3))


def test_an_empty_range_has_scale_1():
    assert affine_params(0, 0, 8) == (1, 0)
    assert affine_params(0, 0, 8, signed=True) == (1, -128)


@pytest.mark.parametrize(("low", "high"), [(1, 0), (np.nan, 1), (0, np.inf)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(ValueError, match="two finite numbers in order"):
        affine_params(low, high, 8)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_mse_is_close_to_the_best_of_a_brute_force_search(name, bits):
    values = DISTRIBUTIONS[name].astype(np.float32).astype(np.float64)
    chosen = squared_error(values, *choose_range(observed(values), "mse", bits), bits)
    thin = np.concatenate([values[::20], values[-2:]])
    low, high = min(values.min(), 0), max(values.max(), 0)
    fractions = np.concatenate([np.geomspace(0.02, 0.2, 8), np.linspace(0.25, 1, 16)])
    pairs = {(low * f, high * g) for f in fractions for g in fractions}
    ranked = sorted(pairs, key=lambda pair: squared_error(thin, pair[0], pair[1], bits))
    best = min(squared_error(values, *pair, bits) for pair in ranked[:10])
    assert chosen <= 1.05 * best
    assert chosen <= 1.001 * squared_error(values, low, high, bits)


def test_minmax_is_exact():
    assert choose_range(observed([-1.5, 0.25, 3.0]), "minmax") == (-1.5, 3.0)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_percentile_agrees_with_the_sorted_values(percentile, monkeypatch):
    monkeypatch.setattr(ranges, "KEPT", percentile / 100)
    values = DISTRIBUTIONS["normal"]
    tail = (100 - percentile) / 2
    low, high = choose_range(observed(values), "percentile")
    np.testing.assert_allclose((low, high), np.percentile(values, [tail, 100 - tail]), atol=np.ptp(values) / 1024)


def test_percentile_takes_all_of_its_loss_where_there_are_values(monkeypatch):
    monkeypatch.setattr(ranges, "KEPT", 0.99)
    values = DISTRIBUTIONS["relu"]
    low, high = choose_range(observed(values), "percentile")
    assert low == 0
    assert high == pytest.approx(np.percentile(values, 99), abs=np.ptp(values) / 1024)
    low, high = choose_range(observed(-values), "percentile")
    assert high == 0
    assert low == pytest.approx(np.percentile(-values, 1), abs=np.ptp(values) / 1024)


def test_entropy_keeps_a_uniform_range_and_clips_long_tails():
    low, high = choose_range(observed(DISTRIBUTIONS["uniform"]), "entropy")
    assert (low, high) == pytest.approx((-1, 3), abs=0.1)
    laplace = DISTRIBUTIONS["laplace"]
    low, high = choose_range(observed(laplace), "entropy", bits=4)
    assert laplace.min() < low < -2
    assert 2 < high < laplace.max()
    assert squared_error(laplace, low, high, 4) < squared_error(laplace, laplace.min(), laplace.max(), 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize(
    "values", [[0.0], [0.0, 0.0], [3.0], [-3.0], [1e-38, 1e-38], [-3e38, 3e38], [5.0, 6.0, 10.0], [1e-45]]
)
def test_every_method_survives_odd_values(method, bits, values):
    low, high = choose_range(observed(values), method, bits)
    assert low <= high
    scale, _ = affine_params(low, high, bits)
    assert np.isfinite(scale)
    if max(values) < 1e30 and method != "minmax":
        assert high <= np.float32(max(*values, 0.0))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_observed_is_an_empty_range(method):
    assert choose_range(RangeObserver(), method) == (0.0, 0.0)


def test_an_unknown_method_is_refused():
    with pytest.raises(UsageError, match="known: auto, minmax, percentile, entropy, mse"):
        choose_range(observed([1.0]), cast(Any, "median"))


def test_each_method_that_an_option_may_name_is_known():
    assert sorted(METHODS) == sorted(get_args(ranges.Method))
