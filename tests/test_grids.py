import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc import grids
from ptqc.formats import Format, integer

FORMS = [integer(bits) for bits in range(2, 9)]
forms = st.sampled_from(FORMS)


def all_codes(form: Format) -> np.ndarray:
    return grids.code_of(np.arange(2**form.bits), form)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_codes_and_indices(form: Format) -> None:
    codes = all_codes(form)
    np.testing.assert_array_equal(grids.index_of(codes, form), np.arange(2**form.bits))
    assert len(set(np.diff(codes))) == 1
    assert codes.min() >= -128
    assert codes.max() <= 127
    assert (0 in codes) is (form.bits > 3)
    if form.bits <= 3:
        np.testing.assert_array_equal(codes, -codes[::-1])


def test_the_smallest_grids() -> None:
    assert all_codes(integer(2)).tolist() == [-3, -1, 1, 3]
    assert all_codes(integer(4)).tolist() == list(range(-8, 8))


@given(form=forms, ratio=hnp.arrays(np.float32, 30, elements=st.floats(-300, 300, width=32)))
def test_nearest_is_nearest(form: Format, ratio: np.ndarray) -> None:
    codes = all_codes(form)
    found = grids.nearest(ratio, form)
    assert np.isin(found, codes).all()
    least = np.abs(ratio[:, None].astype(np.float64) - codes).min(1)
    np.testing.assert_array_equal(np.abs(ratio.astype(np.float64) - found), least)


def errors(rows: np.ndarray, importance: np.ndarray, scale: np.ndarray, form: Format) -> np.ndarray:
    rounded = scale[..., None] * grids.nearest(rows / scale[..., None], form)
    return ((rows - rounded) ** 2 * importance).sum(-1)


def searched_and_dense(rows: np.ndarray, importance: np.ndarray, form: Format) -> tuple[np.ndarray, np.ndarray]:
    """Errors per row of the scale that was found, and of the best of 400."""
    found = errors(rows, importance, grids.search_scale(rows, importance, form), form)
    largest = np.abs(rows).max(-1) / grids.largest_code(form)
    tried = [errors(rows, importance, (largest * c).astype(np.float32), form) for c in np.geomspace(0.01, 1.2, 400)]
    return found, np.min(tried, axis=0)


WEIGHTS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy": lambda rng, shape: rng.standard_t(4, shape),
    "even": lambda rng, shape: rng.uniform(-1, 1, shape),
}


@pytest.mark.parametrize("width", [9, 64, 600, 3000])
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_scale_is_nearly_the_best(form: Format, kind: str, width: int) -> None:
    rng = np.random.default_rng(width)
    rows = WEIGHTS[kind](rng, (12, width)).astype(np.float32)
    found, best = searched_and_dense(rows, np.ones((1, width), np.float32), form)
    # Short rows have a jagged error: the dense search finds narrow pits.
    assert (found / best).mean() < (1.7 if width < 64 else 1.15)
    assert (found / best).max() < (6 if width < 64 else 1.7)


@pytest.mark.parametrize("width", [64, 3000])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_columns_without_importance_do_not_stretch_the_grid(form: Format, width: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((12, width)).astype(np.float32)
    importance = np.ones((1, width), np.float32)
    rows[:, ::10] *= 10
    importance[:, ::10] = 1e-6
    found, best = searched_and_dense(rows, importance, form)
    assert (found / best).mean() < 1.2


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_groups_are_searched_one_by_one(form: Format) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((5, 3, 40)).astype(np.float32)
    importance = rng.uniform(0, 1, (5, 1, 40)).astype(np.float32)
    scale = grids.search_scale(rows, importance, form)
    assert scale.shape == (5, 3)
    for group in range(5):
        np.testing.assert_array_equal(scale[group], grids.search_scale(rows[group], importance[group], form))


@settings(deadline=None, max_examples=50)
@given(form=forms, rows=hnp.arrays(np.float32, (3, 8), elements=st.floats(-(2.0**40), 2.0**40, width=32)))
def test_any_row_gets_a_usable_scale(form: Format, rows: np.ndarray) -> None:
    scale = grids.search_scale(rows, np.ones((1, 8), np.float32), form)
    assert scale.dtype == np.float32
    assert np.isfinite(scale).all()
    assert (scale > 0).all()


def test_a_row_of_zeros_takes_the_scale_of_another() -> None:
    rows = np.array([[0, 0], [1, -1]], np.float32)
    scale = grids.search_scale(rows, np.ones((1, 2), np.float32), integer(8))
    assert scale[0] == scale[1]
    assert grids.search_scale(rows[:1], np.ones((1, 2), np.float32), integer(8)).tolist() == [1.0]


def test_scales_are_stored_in_half_precision_where_that_loses_nothing() -> None:
    ones = np.ones(2, np.float32)
    fine = grids.storable(np.array([0.1, 3.0], np.float32), ones)
    assert fine.astype(np.float16).astype(np.float32).tolist() == fine.tolist()
    for extreme in (2.0**-15, 2.0**15 + 32):
        kept = np.array([0.1, extreme], np.float32)
        assert grids.storable(kept, ones).tolist() == kept.tolist()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rounding_along_an_axis(form: Format, axis: int) -> None:
    weight = np.random.default_rng(3).uniform(-1, 1, (4, 5, 6)).astype(np.float32)
    codes, scale = grids.round_nearest(weight, axis, form)
    assert codes.dtype == np.int8
    assert codes.shape == weight.shape
    assert scale.shape == (weight.shape[axis],)
    assert np.isin(codes, all_codes(form)).all()
    for index in range(weight.shape[axis]):
        part, found = (
            np.take(x, index, axis)
            for x in (weight, codes * np.expand_dims(scale, [0, 1, 2][:axis] + [0, 1, 2][axis + 1 :]))
        )
        step = float(np.diff(all_codes(form))[0] * scale[index])
        inside = np.abs(part) < grids.largest_code(form) * scale[index] - step / 2
        assert np.abs(part - found)[inside].max(initial=0) <= step / 2 + 1e-6
