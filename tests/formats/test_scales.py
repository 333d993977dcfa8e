import numpy as np
import pytest
from compiling import weight
from graphs import noise
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats import Codebook, Integer, Scaled, Sparse, TwoOfFour, VectorCodebook, scales

positive = hnp.arrays(np.float32, 5, elements=st.floats(2.0**-60, 2.0**60, width=32))


@given(positive)
def test_scales_are_stored_as_squares_of_bytes(scale: np.ndarray) -> None:
    stored = scales.storable(scale, np.ones(5, np.float32))
    result = scales.roots(stored)
    assert result is not None
    root, unit = result
    assert root.dtype == np.uint8
    assert np.log2(unit) % 1 == 0
    np.testing.assert_array_equal(np.square(root.astype(np.float64)) * unit, stored)
    assert root.max() >= 128 * np.sqrt(2) - 1
    near = scale > stored.max() / 256
    # Roots from 11.3 on, to the next whole number: (11.3 + ½)² is 1.0904 times 11.3².
    assert (np.abs(stored - scale) <= scale / 11)[near].all()
    assert (np.abs(stored - scale)[root >= 128] <= scale[root >= 128] / 127).all()


@given(positive)
def test_what_is_stored_stays_as_it_is(scale: np.ndarray) -> None:
    stored = scales.storable(scale, np.ones(5, np.float32))
    np.testing.assert_array_equal(scales.storable(stored, np.ones(5, np.float32)), stored)
    np.testing.assert_array_equal(scales.rounded(stored, scales.unit_in(stored)), stored)
    other = scales.rounded(np.roll(stored, 1) * np.float32(1.1), scales.unit_in(stored))
    assert scales.roots(np.where(np.arange(5) < 4, other, stored.max())) is not None


@given(positive, st.integers(-300, 300))
def test_scales_beside_others_are_stored_like_them(scale: np.ndarray, steps: int) -> None:
    stored = scales.storable(scale, np.ones(5, np.float32))
    result = scales.roots(stored)
    assert result is not None
    root, unit = result
    expected = np.square(np.clip(root.astype(np.float64) + steps, 1, 255)) * unit
    np.testing.assert_array_equal(scales.beside(stored, float(unit), steps), expected)


@given(hnp.arrays(np.float32, (4, 6), elements=st.floats(-1e6, 1e6, width=32)), st.sampled_from([2, 4, 8]))
def test_the_search_gives_scales_as_they_are_stored(rows: np.ndarray, bits: int) -> None:
    grid = Integer(bits).grid(rows, np.ones((1, 6), np.float32))
    assert (grid.scale > 0).all()
    assert scales.roots(grid.scale) is not None


@given(positive, st.integers(0, 4))
def test_scales_that_shrink_keep_their_unit(scale: np.ndarray, bits: int) -> None:
    stored = scales.storable(scale, np.ones(5, np.float32))
    smaller = scales.rounded(stored / np.float32(2**bits), scales.unit_in(stored))
    assert scales.roots(smaller) is not None


def test_rows_of_zeros_have_the_smallest_scale() -> None:
    stored = scales.storable(np.array([1.0, 0.0, 0.5], np.float32), np.array([1.0, 0.0, 1.0], np.float32))
    assert stored[1] == 2.0**-15  # 1 is at least 181² · 2⁻¹⁵
    nothing = scales.storable(np.zeros(2, np.float32), np.zeros(2, np.float32))
    assert (nothing > 0).all()
    assert scales.roots(nothing) is not None


@given(positive, positive)
def test_scales_are_raised_to_what_can_be_stored(scale: np.ndarray, least: np.ndarray) -> None:
    stored = scales.storable(scale, np.ones(5, np.float32))
    raised = scales.raised(stored, least)
    assert (raised >= least).all()
    assert (raised >= stored).all()
    np.testing.assert_array_equal(raised[stored >= least], stored[stored >= least])
    assert (np.frexp(raised[stored < least])[0] == 0.5).all()
    if least.max() <= stored.max() / 4:
        assert scales.roots(raised) is not None


@given(hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32) | st.floats(-1e3, 1e3, width=16)))
def test_scales_are_narrowed_only_where_that_is_exact(scale: np.ndarray) -> None:
    narrow = scales.narrow(scale)
    np.testing.assert_array_equal(narrow.astype(np.float32), scale)
    assert narrow.dtype in (np.float16, np.float32)


def test_half_precision_scales() -> None:
    assert scales.narrow(np.array([0.5, 0.25], np.float32)).dtype == np.float16
    assert scales.narrow(np.array([0.5, 0.1], np.float32)).dtype == np.float32


@given(st.floats(2.0**-100, 2.0**100, width=32))
def test_the_powers_beside_a_scale(scale: float) -> None:
    low, high = scales.powers_beside(np.array([scale], np.float32))
    assert np.log2(low).item() == np.floor(np.log2(scale) + 1e-12)
    assert high.item() == 2 * low.item()
    assert low.item() <= scale < high.item()


@pytest.mark.parametrize(
    "form", [Integer(2), Integer(4), Codebook(3), VectorCodebook(5), Sparse(3), TwoOfFour(2)], ids=str
)
def test_of_the_powers_beside_a_scale_the_better_one_is_taken(form: Scaled) -> None:
    rows = weight(64, 96)
    importance = np.linspace(0.1, 2, 96, dtype=np.float32)[None]
    free = form.grid(rows, importance)
    grid = free.with_powers(rows, importance)
    assert grid.powers
    assert np.frexp(grid.scale)[0].tolist() == [0.5] * 64

    def error(scale: np.ndarray) -> np.ndarray:
        codes = grid.nearest((rows / scale[:, None]).reshape(64, -1, form.group), None).reshape(rows.shape)
        if grid.patterns is not None:
            power = (rows**2 * importance).reshape(64, 24, 4)
            codes = codes * (np.argsort(np.argsort(-power, -1), -1) < 2).reshape(rows.shape)
        return (((rows - codes * scale[:, None]).astype(np.float64) ** 2) * importance).sum(-1)

    low, high = scales.powers_beside(free.scale)
    np.testing.assert_allclose(error(grid.scale), np.minimum(error(low), error(high)), rtol=1e-4)
    codes, scale = form.rounded(rows, 0, powers=True)
    assert np.frexp(scale)[0].tolist() == [0.5] * 64
    assert scales.narrow(form.pack(codes, scale)[-1]).dtype == np.float16


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
