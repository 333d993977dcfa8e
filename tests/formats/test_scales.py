import numpy as np
import pytest
from compiling import weight
from graphs import noise
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.formats import Codebook, Integer, Scaled, Sparse, TwoOfFour, VectorCodebook, scales


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
    assert form.pack(codes, scale)[-1].dtype == np.float16


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
