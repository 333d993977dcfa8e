import numpy as np
import pytest
from graphs import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from ptqc.formats import Codebook, Format, Integer, VectorCodebook
from ptqc.formats.levels import REACH, Levels, fit, indices


def error(rows: np.ndarray, importance: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> float:
    return float((importance * (rows - codes * scale[..., None]) ** 2).sum())


FORMS = [Codebook(2), Codebook(3), Codebook(4), VectorCodebook(3), VectorCodebook(6), VectorCodebook(8)]


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 6), half=st.integers(1, 20), form=st.sampled_from(FORMS), seed=st.integers(0, 999))
def test_levels_are_few_whole_and_fit_seven_bits(rows: int, half: int, form: Format, seed: int) -> None:
    width = 2 * half
    book, scale = fit(noise(rows, width, seed=seed), np.ones((1, width), np.float32), form.bits, form.group)
    assert len(book.values) <= 2**form.bits
    assert book.values.shape[1] == form.group
    assert len(np.unique(book.values, axis=0)) == len(book.values)
    np.testing.assert_array_equal(book.values, np.rint(book.values))
    assert np.abs(book.values).max() <= REACH
    assert (scale > 0).all()


def test_nearest_is_the_nearest_level() -> None:
    book, ratio = Levels(np.array([[-50], [-3], [1], [63]], np.float32)), noise(500, 1, scale=40.0)
    distance = np.abs(ratio - book.values[:, 0])
    np.testing.assert_array_equal(book.nearest(ratio), book.values[distance.argmin(1)])


def test_nearest_pair_is_the_nearest_by_the_metric() -> None:
    levels, ratio = np.rint(noise(16, 2, scale=30.0)), noise(3, 50, 2, seed=1, scale=30.0)
    roots = noise(3, 2, 2, seed=2).astype(np.float64)
    metric = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(2)
    result = Levels(levels.astype(np.float32)).nearest(ratio, metric.astype(np.float32))
    delta = ratio[:, :, None, :].astype(np.float64) - levels
    distance = np.einsum("grka,gab,grkb->grk", delta, metric, delta)
    chosen = ((ratio - result).astype(np.float64)[:, :, None] @ metric[:, None]) @ (ratio - result)[..., None]
    np.testing.assert_allclose(chosen[..., 0, 0], distance.min(-1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bits", range(2, 5))
@pytest.mark.parametrize("seed", range(3))
def test_not_worse_than_the_best_even_grid(bits: int, seed: int) -> None:
    rows, importance = noise(32, 200, seed=seed), np.abs(noise(1, 200, seed=seed + 9)) + np.float32(0.1)
    book, scale = fit(rows, importance, Codebook(bits).bits, Codebook(bits).group)
    even = Integer(bits).grid(rows, importance).scale
    codes = Integer(bits).nearest(rows / even[:, None])
    fitted = error(rows, importance, book.nearest((rows / scale[:, None])[..., None])[..., 0], scale)
    assert fitted <= 1.03 * error(rows, importance, codes, even)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_dead_layer_has_left_is_scaled_exactly(form: Format) -> None:
    rows, power = noise(40, 16), np.float32(2.0**-100)
    rows[3, 5] *= 2.0**45
    ones = np.ones((1, 16), np.float32)
    result, wanted = (fit(one, ones, form.bits, form.group) for one in (rows * power, rows))
    np.testing.assert_array_equal(result[0].values, wanted[0].values)
    assert (result[1] > 0).all()


@pytest.mark.parametrize("left", [0.0, 2.0**-60, 2.0**-100])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_dead_rows_take_nothing_from_the_others(form: Format, left: float) -> None:
    """Pruned channels, and those whose weights decayed for a whole training, may be most of a layer."""
    rows, ones = noise(60, 32), np.ones((1, 32), np.float32)
    rows[20:] *= np.float32(left)
    losses = []
    for taken in (rows, rows[:20]):
        book, scale = fit(taken, ones, form.bits, form.group)
        codes = book.nearest((taken / scale[:, None]).reshape(len(taken), -1, form.group)).reshape(taken.shape)
        losses.append(error(taken[:20], ones, codes[:20], scale[:20]))
        assert np.abs(codes[20:] * scale[20:, None]).max(initial=0.0) < 0.01
    assert losses[0] <= 1.05 * losses[1]


@pytest.mark.parametrize("rows", [np.zeros((3, 8), np.float32), np.full((2, 5), 7, np.float32)])
def test_constant_rows_have_a_codebook(rows: np.ndarray) -> None:
    book, scale = fit(rows, np.ones((1, rows.shape[1]), np.float32), Codebook(3).bits, Codebook(3).group)
    assert np.isfinite(book.values).all()
    assert (scale > 0).all()
    result = book.nearest((rows / scale[:, None])[..., None])[..., 0] * scale[:, None]
    assert np.abs(result - rows).max() <= 0.05 * max(np.abs(rows).max(), 20)


@pytest.mark.parametrize("bits", range(2, 5))
def test_pairs_are_better_than_single_codes_at_the_same_bits(bits: int) -> None:
    rows, importance = noise(64, 300), np.ones((1, 300), np.float32)
    losses = []
    for form in (Codebook(bits), VectorCodebook(2 * bits)):
        book, scale = fit(rows, importance, form.bits, form.group)
        codes = book.nearest((rows / scale[:, None]).reshape(64, -1, form.group)).reshape(rows.shape)
        losses.append(error(rows, importance, codes, scale))
    assert losses[1] < 0.99 * losses[0]


@pytest.mark.parametrize("group", [1, 2])
def test_indices_find_the_codes_again(group: int) -> None:
    codes = np.resize(np.array([63, -7, 0, 12], np.int8), (5, 6))
    index, levels = indices(codes, group)
    np.testing.assert_array_equal(levels[index].reshape(codes.shape), codes)
    assert len(levels) == 4 // group
    assert index.dtype == np.uint8
    assert levels.dtype == np.int8


@pytest.mark.parametrize("axis", [0, 1])
def test_round_nearest_along_an_axis(axis: int) -> None:
    weight = noise(6, 7, 3) * np.linspace(0.1, 3, (6, 7)[axis], dtype=np.float32).reshape(
        (-1, 1, 1) if axis == 0 else (1, -1, 1)
    )
    codes, scale = Codebook(4).rounded(weight, axis)
    shape = [1, 1, 1]
    shape[axis] = -1
    assert codes.dtype == np.int8
    assert codes.shape == weight.shape
    assert ((weight - codes * scale.reshape(shape)) ** 2).sum() < 0.02 * (weight**2).sum()
