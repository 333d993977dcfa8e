import numpy as np
import pytest
from graphs import noise
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats import Integer, scales


def test_scales_are_stored_in_half_precision_where_that_loses_nothing() -> None:
    ones = np.ones(2, np.float32)
    fine = scales.storable(np.array([0.1, 3.0], np.float32), ones)
    assert fine.astype(np.float16).astype(np.float32).tolist() == fine.tolist()
    for extreme in (2.0**-15, 2.0**15 + 32):
        kept = np.array([0.1, extreme], np.float32)
        assert scales.storable(kept, ones).tolist() == kept.tolist()


@given(hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32) | st.floats(-1e3, 1e3, width=16)))
def test_scales_are_narrowed_only_where_that_is_exact(scale: np.ndarray) -> None:
    narrow = scales.narrow(scale)
    np.testing.assert_array_equal(narrow.astype(np.float32), scale)
    assert narrow.dtype in (np.float16, np.float32)


def test_half_precision_scales() -> None:
    assert scales.narrow(np.array([0.5, 0.25], np.float32)).dtype == np.float16
    assert scales.narrow(np.array([0.5, 0.1], np.float32)).dtype == np.float32


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_are_looked_at_apart_have_the_scales_of_all_together(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit."""
    rows = noise(1200, 70).T if turned else noise(70, 1200)
    importance = np.abs(noise(1, 1200, seed=1))
    whole = scales.search(rows, importance, Integer(4).nearest, 7.5)
    each = scales.search(rows, np.broadcast_to(importance, rows.shape), Integer(4).nearest, 7.5)
    monkeypatch.setattr(scales, "SEARCHED_NUMBERS", 10_000)
    assert np.array_equal(scales.search(rows, importance, Integer(4).nearest, 7.5), whole)
    apart = scales.search(rows, np.broadcast_to(importance, rows.shape), Integer(4).nearest, 7.5)
    assert np.array_equal(apart, each)
