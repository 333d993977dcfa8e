import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.calibration.ranges import BINS, SAMPLED, RangeObserver, _subset

FLOATS = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.one_of(
        st.floats(-10, 10, width=32),
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        st.just(np.float32(0)),
    ),
)


def observed(*arrays):
    observer = RangeObserver()
    for array in arrays:
        observer.update(array)
    return observer


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_counts_are_those_of_a_second_pass(arrays):
    observer = observed(*arrays)
    counts, edges = observer.histogram()
    everything = np.concatenate(arrays).astype(np.float64)
    # np.histogram closes its last bin, hence the extra one.
    expected = np.histogram(everything, np.append(edges, np.inf))[0]
    np.testing.assert_array_equal(counts, expected[:-1])
    assert expected[-1] == 0
    assert counts.sum() == everything.size
    assert counts[0] > 0
    assert counts[-1] > 0


@settings(deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(arrays, random):
    one = observed(*arrays)
    shuffled = list(arrays)
    random.shuffle(shuffled)
    other = observed(*shuffled)
    np.testing.assert_array_equal(one.counts, other.counts)
    assert (one.first, one.exponent, one.low, one.high) == (other.first, other.exponent, other.low, other.high)


@settings(deadline=None)
@given(FLOATS)
def test_at_least_half_of_the_bins_cover_a_range_that_is_not_narrow(array):
    observer = observed(array)
    counts, edges = observer.histogram()
    assert len(counts) <= BINS
    assert edges[0] <= observer.low
    assert observer.high < edges[-1]
    if observer.high - observer.low > 1e-3 * max(abs(observer.low), abs(observer.high)):
        assert len(counts) >= BINS // 2


def test_extremes_are_exact_over_more_values_than_the_histogram_takes():
    rng = np.random.default_rng(1)
    arrays = [rng.normal(3, 2, size=(7, 100_003)).astype(np.float32) for _ in range(2)]
    observer = observed(*arrays)
    everything = np.concatenate(arrays)
    assert observer.count == everything.size
    assert (observer.low, observer.high) == (everything.min(), everything.max())
    assert observer.counts.sum() <= 2 * SAMPLED
    few = RangeObserver()
    few.update(everything, most=1000)
    assert (few.count, few.low, few.high) == (everything.size, everything.min(), everything.max())
    assert 500 <= few.counts.sum() <= 1000


def test_values_that_are_not_finite_are_left_out():
    batch = np.array([[1, np.inf], [np.nan, 2], [-np.inf, np.nan]], np.float32)
    observer = observed(batch)
    assert (observer.count, observer.low, observer.high) == (2, 1, 2)
    assert observer.counts.sum() == 2


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float16, np.float64, ml_dtypes.bfloat16])
def test_every_numeric_dtype_is_observed(dtype):
    observer = observed(np.array([[0, 1], [1, 1]]).astype(dtype))
    assert (observer.low, observer.high, observer.zeros) == (0, 1, 1)
    assert observer.integral


def test_nothing_and_scalars():
    observer = observed(np.zeros((0, 3), np.float32))
    assert observer.count == 0
    assert observer.histogram()[0].size == 0
    observer.update(np.float32(2.5))
    assert (observer.low, observer.high, observer.integral) == (2.5, 2.5, False)


def test_the_state_has_a_fixed_size():
    observer = observed(*(np.full(1000, 10.0**power, np.float32) for power in range(-30, 30)))
    assert observer.counts.shape == (BINS,)
    assert observer.counts.sum() == 60_000


@pytest.mark.parametrize("channels", [2, 3, 7, 64])
def test_the_subset_visits_every_channel_alike(channels):
    size = 4 * SAMPLED // channels * channels
    subset = _subset(np.arange(size) % channels, SAMPLED)
    assert SAMPLED * 0.5 <= subset.size <= SAMPLED
    counts = np.bincount(subset, minlength=channels)
    assert np.ptp(counts) <= 1
