import numpy as np
import pytest
from graphs import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from ptqc import codebooks, grids
from ptqc.codebooks import Codebook
from ptqc.formats import integer


def error(rows: np.ndarray, importance: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> float:
    return float((importance * (rows - codes * scale[..., None]) ** 2).sum())


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 6), width=st.integers(1, 40), bits=st.integers(2, 5), seed=st.integers(0, 999))
def test_levels_are_few_whole_sorted_and_fit_seven_bits(rows: int, width: int, bits: int, seed: int) -> None:
    book, scale = codebooks.fit(noise(rows, width, seed=seed), np.ones((1, width), np.float32), bits)
    assert len(book.levels) <= 2**bits
    assert (np.diff(book.levels) > 0).all()
    np.testing.assert_array_equal(book.levels, np.rint(book.levels))
    assert np.abs(book.levels).max() <= codebooks.REACH
    assert (scale > 0).all()


def test_nearest_is_the_nearest_level() -> None:
    book, ratio = Codebook(np.array([-50, -3, 1, 63], np.float32)), noise(500, scale=40.0)
    distance = np.abs(ratio[:, None] - book.levels)
    np.testing.assert_array_equal(book.nearest(ratio), book.levels[distance.argmin(1)])


@pytest.mark.parametrize("bits", range(2, 6))
@pytest.mark.parametrize("seed", range(3))
def test_not_worse_than_the_best_even_grid(bits: int, seed: int) -> None:
    rows, importance = noise(32, 200, seed=seed), np.abs(noise(1, 200, seed=seed + 9)) + np.float32(0.1)
    book, scale = codebooks.fit(rows, importance, bits)
    even = grids.search_scale(rows, importance, integer(bits))
    codes = grids.nearest(rows / even[:, None], integer(bits))
    fitted = error(rows, importance, book.nearest(rows / scale[:, None]), scale)
    assert fitted <= 1.02 * error(rows, importance, codes, even)


@pytest.mark.parametrize("rows", [np.zeros((3, 8), np.float32), np.full((2, 5), 7, np.float32)])
def test_constant_rows_have_a_codebook(rows: np.ndarray) -> None:
    book, scale = codebooks.fit(rows, np.ones((1, rows.shape[1]), np.float32), 3)
    assert np.isfinite(book.levels).all()
    assert (scale > 0).all()
    assert np.abs(book.nearest(rows / scale[:, None]) * scale[:, None] - rows).max() <= 0.05 * max(
        np.abs(rows).max(), 20
    )


def test_indices_find_the_codes_again() -> None:
    codes = np.resize(np.array([63, -7, 0, 12], np.int8), (5, 9))
    index, levels = codebooks.indices(codes)
    np.testing.assert_array_equal(levels, [-7, 0, 12, 63])
    np.testing.assert_array_equal(levels[index], codes)
    assert index.dtype == np.uint8
    assert levels.dtype == np.int8


@pytest.mark.parametrize("axis", [0, 1])
def test_round_nearest_along_an_axis(axis: int) -> None:
    weight = noise(6, 7, 3) * np.linspace(0.1, 3, (6, 7)[axis], dtype=np.float32).reshape(
        (-1, 1, 1) if axis == 0 else (1, -1, 1)
    )
    codes, scale = codebooks.round_nearest(weight, axis, 4)
    shape = [1, 1, 1]
    shape[axis] = -1
    assert codes.dtype == np.int8
    assert codes.shape == weight.shape
    assert ((weight - codes * scale.reshape(shape)) ** 2).sum() < 0.02 * (weight**2).sum()
