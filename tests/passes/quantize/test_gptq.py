import numpy as np
import pytest
from graphs import noise
from hypothesis import given, settings
from hypothesis import strategies as st
from solving import solve

from ptqc.formats import Codebook, Integer, Scaled, Sparse, SparseCodebook, TwoOfFour, VectorCodebook, scales
from ptqc.formats.base import largest
from ptqc.formats.sparse import PATTERNS
from ptqc.passes.quantize import gptq, moments

FORMS = [Integer(bits) for bits in range(2, 9)]


def correlated(groups: int, width: int, seed: int, rank: int | None = None) -> np.ndarray:
    """Second moments (groups, width, width) of inputs that hang together, as those of real layers do."""
    rank = rank or max(1, width // 3)
    mixed = noise(groups, width, rank, seed=seed) @ noise(groups, rank, 8 * width + 8, seed=seed + 1)
    x = mixed + noise(groups, width, 8 * width + 8, seed=seed + 2, scale=0.5)
    return x @ x.transpose(0, 2, 1) / x.shape[-1]


def nearest(matrix: np.ndarray, second: np.ndarray, form: Integer) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale of plain rounding, with the scale that the solver starts from."""
    diagonal = np.diagonal(second, axis1=1, axis2=2)
    importance = (diagonal + 1e-6 * diagonal.mean())[:, None, :].astype(np.float32)
    scale = form.grid(matrix, importance).scale
    return form.nearest(matrix / scale[..., None]), scale


def column_by_column(matrix: np.ndarray, second: np.ndarray, form: Integer) -> np.ndarray:
    """One group in float64: round a column, move the others to their best places, strike it from the inverse.

    Optimal Brain Quantization (Frantar, Alistarh 2022, eq. 2 and lemma 1), which GPTQ reformulates, in the order of
    falling second moments of pairs of neighbours; of single columns where their number is odd.
    """
    _, scale = nearest(matrix[None], second[None], form)
    work, codes = matrix.astype(np.float64), np.empty(matrix.shape)
    width = work.shape[1]
    inverse = np.linalg.inv(second.astype(np.float64) + np.eye(width) * gptq.DAMPING * np.trace(second) / width)
    group = 1 if width % 2 else 2
    first = np.argsort(-np.diagonal(second).reshape(-1, group).sum(1), kind="stable")
    for j in (first[:, None] * group + np.arange(group)).ravel():
        codes[:, j] = form.nearest(work[:, j] / scale[0])
        error = (work[:, j] - codes[:, j] * scale[0]) / inverse[j, j]
        work -= np.outer(error, inverse[j])
        inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return codes


@pytest.mark.parametrize("width", [1, 7, 60, 140, 260])
@pytest.mark.parametrize("form", [Integer(2), Integer(4), Integer(8)], ids=str)
def test_codes_are_those_of_the_method(form: Integer, width: int) -> None:
    matrix, second = noise(12, width, seed=width), correlated(1, width, seed=width)
    result = solve(matrix[None], second, [form])[form].codes[0]
    expected = column_by_column(matrix, second[0], form)
    # A value on the edge of two codes may fall either way in float32; the rest of its row then goes another way too.
    same_rows = (result == expected).all(1)
    assert same_rows.mean() > 0.7
    assert (result == expected).mean() > 0.85


@pytest.mark.parametrize(
    "form", [Integer(2), Integer(3), Integer(5), Codebook(2), Codebook(4), VectorCodebook(5)], ids=str
)
def test_refined_codes_cannot_be_improved_one_by_one(form: Scaled) -> None:
    matrix, second = noise(1, 12, 150), correlated(1, 150, seed=4)
    plain, refined = (solve(matrix, second, [form], rounds=r)[form] for r in (0, 100))
    damped = second[0].astype(np.float64) + np.eye(150) * gptq.DAMPING * np.trace(second[0]) / 150

    def error(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
        delta = matrix[0].astype(np.float64) - codes * scale[:, None]
        return np.asarray(((delta @ damped) * delta).sum(-1))

    before, after = (error(r.codes[0], r.scale[0]) for r in (plain, refined))
    assert (after <= before * (1 + 1e-4)).all()
    assert after.sum() < 0.98 * before.sum()
    levels = np.unique(refined.codes.reshape(-1, form.group), axis=0)
    for j in range(0, 150, 6):
        for level in levels:
            tried = refined.codes[0].copy()
            tried[:, j : j + form.group] = level
            assert (error(tried, refined.scale[0]) >= after * (1 - 5e-3)).all()


@pytest.mark.parametrize("rounds", [0, 5])
@pytest.mark.parametrize("width", [12, 150])
def test_zeros_stay_and_the_others_make_up_for_what_they_are_rounded_to(width: int, rounds: int) -> None:
    matrix, second = noise(2, 16, width), correlated(2, width, seed=4)
    matrix *= np.abs(matrix) > 0.67
    forms = [Sparse(3), SparseCodebook(2), Integer(4)]
    result = solve(matrix, second, forms, rounds)
    for form in forms[:2]:
        np.testing.assert_array_equal(result[form].codes == 0, matrix == 0)
        diagonal = np.diagonal(second, axis1=1, axis2=2)
        (alone,) = gptq.round_all([gptq.RoundingTarget(matrix, form.grid(matrix, diagonal[:, None]))], diagonal)
        np.testing.assert_array_equal(alone.codes == 0, matrix == 0)
        error, plain = (moments.error(matrix - each.weight, second).sum() for each in (result[form], alone))
        assert error < plain
    np.testing.assert_array_equal(result[forms[2]].codes, solve(matrix, second, forms[2:], rounds)[forms[2]].codes)


def test_the_zeros_of_four_columns_are_those_that_the_others_make_up_for_best() -> None:
    columns, second = noise(2, 4, 10, seed=1), correlated(2, 12, seed=2)
    factor = gptq.inverse_factor(second, damping=0.0)
    result = gptq._cheapest(columns, factor[:, :4, :4], PATTERNS)
    for group in range(2):
        for row in range(10):
            costs = []
            for kept in PATTERNS.astype(bool):
                gone, free = np.flatnonzero(~kept), np.setdiff1d(np.arange(12), np.flatnonzero(~kept))
                h = second[group].astype(np.float64)
                # Everything else is free: Schur's complement is what is left of the columns that become zero.
                left = h[np.ix_(gone, gone)] - h[np.ix_(gone, free)] @ np.linalg.solve(
                    h[np.ix_(free, free)], h[np.ix_(free, gone)]
                )
                held = columns[group, gone, row]
                costs.append(held @ left @ held)
            assert costs[int((result[group, :, row] == PATTERNS).all(1).argmax())] <= min(costs) * (1 + 1e-3)


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("width", [4, 60, 260])
def test_two_of_four_are_chosen_and_the_others_make_up_for_them(width: int, rounds: int) -> None:
    matrix, second = noise(2, 16, width), correlated(2, width, seed=4)
    form, four = TwoOfFour(5), lambda codes: (codes != 0).reshape(-1, 4).sum(1)
    result = solve(matrix, second, [form, TwoOfFour(2)], rounds)
    assert all((four(each.codes) == 2).all() for each in result.values())
    magnitude = np.where(largest(matrix * matrix, PATTERNS), matrix, np.float32(0))
    value = solve(magnitude, second, [form], rounds)[form]
    np.testing.assert_array_equal(value.codes == 0, magnitude == 0)
    chosen, plain = (moments.error(matrix - each.weight, second).sum() for each in (result[form], value))
    assert chosen < (0.6 if width > 4 else 1.0) * plain


@pytest.mark.parametrize("form", [Integer(3), Codebook(3), VectorCodebook(5), TwoOfFour(3)], ids=str)
def test_scales_stay_powers_of_two_while_they_are_fitted(form: Scaled) -> None:
    matrix, second = noise(2, 16, 60), correlated(2, 60, seed=4)
    grid = gptq.grids_for(matrix, second, [form], powers=True)[form]
    result, plain = (gptq.round_all([gptq.RoundingTarget(matrix, grid, rounds)], second)[0] for rounds in (4, 0))
    assert (np.frexp(result.scale)[0] == 0.5).all()
    errors = [moments.error(matrix - each.weight, second).sum() for each in (result, plain)]
    assert errors[0] <= errors[1]


def test_without_correlations_the_two_that_count_most_are_kept() -> None:
    matrix, form = noise(1, 6, 40), TwoOfFour(3)
    importance = np.linspace(0.1, 3, 40, dtype=np.float32)[None]
    grid = form.grid(matrix, importance[:, None])
    (result,) = gptq.round_all([gptq.RoundingTarget(matrix, grid)], importance)
    expected = np.argsort(np.argsort(-(matrix**2 * importance).reshape(1, 6, 10, 4), -1), -1) < 2
    np.testing.assert_array_equal(result.codes.reshape(1, 6, 10, 4) != 0, expected)
    (full,) = gptq.round_all([gptq.RoundingTarget(matrix, grid)], np.diag(importance[0])[None])
    np.testing.assert_array_equal(full.codes != 0, result.codes != 0)


def test_wide_grids_are_not_refined() -> None:
    matrix, second = noise(1, 12, 150), correlated(1, 150, seed=4)
    forms = [Integer(3), Integer(4), Codebook(4), VectorCodebook(8), Integer(5), Integer(8)]
    grids = gptq.grids_for(matrix, second, forms)
    assert [gptq.RoundingTarget.of(matrix, grids[form], form, 7).rounds for form in forms] == [7, 7, 7, 7, 0, 0]


@pytest.mark.parametrize("bits", range(2, 5))
def test_codebooks_are_better_than_even_grids_on_skewed_weights(bits: int) -> None:
    matrix, second = np.exp(0.7 * noise(1, 24, 64)) - 1, correlated(1, 64, seed=6, rank=40)
    result = solve(matrix, second, [Integer(bits), Codebook(bits)])
    even, fitted = (moments.error(matrix - result[f].weight, second).sum() for f in (Integer(bits), Codebook(bits)))
    assert fitted < 0.9 * even
    assert len(np.unique(result[Codebook(bits)].codes)) <= 2**bits


@pytest.mark.parametrize("width", [1, 5, 128, 129, 200, 300])
def test_the_factor_of_the_inverse(width: int) -> None:
    second = correlated(2, width, seed=3)
    factor = gptq.inverse_factor(second).astype(np.float64)
    damped = second + np.eye(width) * (gptq.DAMPING * np.trace(second, axis1=1, axis2=2) / width)[:, None, None]
    np.testing.assert_allclose(factor, np.triu(factor), atol=1e-12)
    product = factor.transpose(0, 2, 1) @ factor @ damped
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(width), product.shape), atol=2e-4)


@pytest.mark.parametrize("width", [1, 8, 75, 130])
def test_rows_times_the_damped_inverse(width: int) -> None:
    second, rows = correlated(2, width, seed=3), noise(2, 6, width)
    damped = second + np.eye(width) * (0.05 * np.trace(second, axis1=1, axis2=2) / width)[:, None, None]
    result = gptq.Factored.of(second, 0.05).solve(rows)
    np.testing.assert_allclose(result @ damped, rows, atol=2e-4)


def test_the_factor_of_no_data_is_finite() -> None:
    assert np.isfinite(gptq.inverse_factor(np.zeros((2, 4, 4), np.float32))).all()


@settings(deadline=None, max_examples=60)
@given(
    groups=st.integers(1, 3),
    rows=st.integers(4, 8),
    width=st.integers(2, 40),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 999),
)
def test_never_much_worse_than_rounding(groups: int, rows: int, width: int, form: Integer, seed: int) -> None:
    matrix, second = noise(groups, rows, width, seed=seed), correlated(groups, width, seed)
    codes, scale = nearest(matrix, second, form)
    plain = float(moments.error(matrix - codes * scale[..., None], second).sum())
    result = solve(matrix, second, [form])[form]
    error = float(moments.error(matrix - result.weight, second).sum())
    assert error <= 1.3 * plain + 1e-6 * float(moments.error(matrix, second).sum())


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_much_better_than_rounding_on_correlated_inputs(form: Integer) -> None:
    matrix, second = noise(1, 32, 64), correlated(1, 64, seed=5, rank=6)
    codes, scale = nearest(matrix, second, form)
    plain = moments.error(matrix - codes * scale[..., None], second).sum()
    result = solve(matrix, second, [form])[form]
    assert moments.error(matrix - result.weight, second).sum() < 0.6 * plain


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_scale_is_refitted_to_the_codes_where_that_helps(form: Integer) -> None:
    for seed in range(8):
        matrix, second = noise(1, 12, 20, seed=seed), correlated(1, 20, seed)
        result = solve(matrix, second, [form])[form]
        codes, exact, h = result.codes[0].astype(np.float64), matrix[0].astype(np.float64), second[0].astype(np.float64)
        best = ((codes @ h) * exact).sum(-1) / ((codes @ h) * codes).sum(-1)
        _, start = nearest(matrix, second, form)
        errors = [moments.error(matrix - result.codes * s[..., None], second) for s in (result.scale, start)]
        assert (errors[0] <= errors[1] * (1 + 1e-5)).all()
        kept = result.scale[0] == start[0]
        np.testing.assert_allclose(result.scale[0][~kept], best[~kept], rtol=0.02)
        assert form.bits >= 5 or kept.mean() < 0.7  # scales that are stored are coarser than what is gained


def test_uncorrelated_inputs_leave_plain_rounding() -> None:
    matrix = noise(2, 8, 30)
    second = np.stack([np.diag(np.linspace(1, 3, 30, dtype=np.float32))] * 2)
    for form in FORMS:
        codes, scale = nearest(matrix, second, form)
        result = solve(matrix, second, [form])[form]
        np.testing.assert_array_equal(result.codes, codes)
        refitted = moments.error(matrix - result.weight, second)
        assert (refitted <= moments.error(matrix - codes * scale[..., None], second) * (1 + 1e-6)).all()


def test_a_diagonal_stands_for_uncorrelated_inputs() -> None:
    matrix = noise(2, 8, 30)
    diagonal = np.abs(noise(2, 30, seed=1)) + 0.1
    full = np.stack([np.diag(d) for d in diagonal])
    for form in FORMS:
        from_diagonal, from_full = (solve(matrix, second, [form])[form] for second in (diagonal, full))
        np.testing.assert_array_equal(from_diagonal.codes, from_full.codes)
        np.testing.assert_allclose(from_diagonal.scale, from_full.scale, rtol=2e-3)


def test_formats_together_equal_formats_alone() -> None:
    matrix, second = noise(2, 4, 135), correlated(2, 135, seed=1)
    together = solve(matrix, second, FORMS)
    assert list(together) == FORMS
    for form in FORMS:
        alone = solve(matrix, second, [form])[form]
        assert (together[form].codes == alone.codes).mean() > 0.97
        np.testing.assert_allclose(together[form].scale, alone.scale, rtol=0.02)


@pytest.mark.parametrize(("groups", "rows", "width"), [(16, 1, 9), (3, 4, 20)])
def test_groups_are_solved_one_by_one(groups: int, rows: int, width: int) -> None:
    matrix, second = noise(groups, rows, width), correlated(groups, width, seed=2)
    form = Integer(4)
    together = solve(matrix, second, [form])[form]
    assert together.codes.shape == matrix.shape
    assert together.codes.dtype == np.int8
    assert together.scale.shape == (groups, rows)
    for group in range(groups):
        alone = solve(matrix[group : group + 1], second[group : group + 1], [form])[form]
        # The unit of the scales is that of all groups.
        np.testing.assert_allclose(together.scale[group], alone.scale[0], rtol=0.05)
        errors = [
            moments.error(matrix[group : group + 1] - weight[None], second[group : group + 1]).sum()
            for weight in (together.weight[group], alone.weight[0])
        ]
        assert errors[0] <= 1.3 * errors[1]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_codes_are_on_the_grid_and_scales_storable(form: Integer) -> None:
    result = solve(noise(1, 16, 40, scale=0.05), correlated(1, 40, seed=4), [form])[form]
    assert np.isin(result.codes, form.levels(result.codes)).all()
    assert (result.scale > 0).all()
    assert scales.roots(result.scale) is not None


def test_dead_inputs_and_rows_of_zeros() -> None:
    matrix, second = noise(1, 4, 12), correlated(1, 12, seed=6)
    second[:, 3], second[:, :, 3] = 0, 0
    matrix[:, 1] = 0
    solved = solve(matrix, second, FORMS)
    for form in FORMS:
        result = solved[form]
        assert np.isfinite(result.weight).all()
        if not form.is_symmetric:
            assert not result.weight[:, 1].any()


@pytest.mark.parametrize("form", [Integer(3), Integer(4), Codebook(3), VectorCodebook(7), Sparse(5)], ids=str)
@pytest.mark.parametrize("rounds", [0, 2])
def test_outputs_that_are_rounded_apart_are_those_of_all_together(form: Scaled, rounds: int) -> None:
    matrix, second = noise(2, 24, 16, seed=3), correlated(2, 16, seed=4)
    matrix *= np.abs(matrix) > 0.5
    target = gptq.RoundingTarget(matrix, gptq.grids_for(matrix, second, [form])[form], rounds)
    (whole,) = gptq.round_all([target], second)
    (apart,) = gptq.round_all([target], second, numbers=5 * 2 * 16)
    assert np.array_equal(whole.codes, apart.codes)
    assert np.allclose(whole.scale, apart.scale, rtol=1e-5)


def least_of_real_scales(matrix: np.ndarray, form: Integer) -> float:
    """Squared error of rows (R, d) with scales of any value: the best of some that clip, fitted to their codes."""
    exact = matrix.astype(np.float64)
    reach, best = np.abs(exact).max(1) / form.largest_level, np.full(len(exact), np.inf)
    for clip in 2.0 ** np.linspace(-2, 0.2, 40):
        codes = form.nearest(exact / (reach * clip)[:, None])
        scale = (codes * exact).sum(1) / (codes * codes).sum(1)
        best = np.minimum(best, np.square(exact - codes * scale[:, None]).sum(1))
    return float(best.sum())


@pytest.mark.parametrize("width", [9, 64, 576])
def test_scales_of_a_byte_lose_little(width: int) -> None:
    """Though those of channels that differ by a factor of 16 are up to 4 % apart."""
    rows = noise(2, 6000 // width + 20, width) * 2.0 ** noise(2, 6000 // width + 20, 1, seed=1).clip(-2, 2)
    matrix, even = rows.astype(np.float32), np.ones((2, width), np.float32)
    grids = gptq.grids_for(matrix, even, FORMS)
    result = gptq.round_best([gptq.RoundingTarget.of(matrix, grids[form], form, 0) for form in FORMS], even)
    for form, rounded in zip(FORMS, result, strict=True):
        assert scales.roots(rounded.scale) is not None
        error = np.square(matrix.astype(np.float64) - rounded.weight).sum()
        assert error < 1.1 * sum(least_of_real_scales(group, form) for group in matrix)


@pytest.mark.parametrize("form", [Integer(8), Codebook(3), VectorCodebook(5), TwoOfFour(3)], ids=str)
def test_narrow_rows_get_the_best_scale_of_those_nearby(form: Scaled) -> None:
    matrix, second = noise(2, 6, 16), correlated(2, 16, seed=3)
    grid = gptq.grids_for(matrix, second, [form])[form]
    target = gptq.RoundingTarget.of(matrix, grid, form, 2)
    (result,) = gptq.round_best([target], second)
    tried = [target, *(target.beside(steps) for steps in scales.NEARBY)]
    errors = [moments.error(matrix - rounded.weight, second) for rounded in gptq.round_all(tried, second)]
    np.testing.assert_allclose(moments.error(matrix - result.weight, second), np.min(errors, axis=0), rtol=1e-3)
    assert scales.roots(result.scale) is not None


def test_wide_rows_and_powers_of_two_are_solved_once() -> None:
    for width, powers in ((gptq.NARROW + 2, False), (9, True)):
        matrix, second = noise(1, 6, width), correlated(1, width, seed=3)
        grid = gptq.grids_for(matrix, second, [Integer(4)], powers=powers)[Integer(4)]
        target = gptq.RoundingTarget.of(matrix, grid, Integer(4), 2)
        (best,), (once,) = (solved([target], second) for solved in (gptq.round_best, gptq.round_all))
        np.testing.assert_array_equal(best.codes, once.codes)
        np.testing.assert_array_equal(best.scale, once.scale)


@pytest.mark.parametrize("form", [Integer(2), Codebook(3), VectorCodebook(5)], ids=str)
def test_one_output_is_refined_like_several(form: Scaled) -> None:
    for seed in range(4):
        matrix, second = noise(1, 8, 16, seed=seed), correlated(1, 16, seed)
        target = gptq.RoundingTarget.of(matrix, gptq.grids_for(matrix, second, [form])[form], form, 3)
        factored = gptq.Factored.of(second)
        (together,), (alone,) = (gptq.round_all([target], factored, numbers) for numbers in (None, 16))
        np.testing.assert_array_equal(alone.codes, together.codes)
        np.testing.assert_array_equal(alone.scale, together.scale)
