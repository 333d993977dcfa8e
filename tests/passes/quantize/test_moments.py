from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptqc.execution.onnxruntime import run
from ptqc.execution.tensors import Compressed
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.layers import Layer, find_layers
from ptqc.passes.quantize import moments
from ptqc.passes.quantize.moments import MOST_IMAGES, MOST_NUMBERS, ColumnSample, Moments, positions_per_sample


class Case(NamedTuple):
    """A layer with its weight, an input and the output that ONNX Runtime computes."""

    layer: Layer
    weight: np.ndarray
    x: np.ndarray
    y: np.ndarray


def case(node: str, x: np.ndarray, w: np.ndarray) -> Case:
    shape = ",".join("ABCDE"[: x.ndim])
    rank = w.ndim if node.startswith("Conv") else x.ndim
    model = parse(f"g (float[{shape}] x) => (float[{','.join('PQRST'[:rank])}] y) {{ y = {node} }}", w=w)
    (layer,) = find_layers(model)
    return Case(layer, w, x, run(model, {"x": x})["y"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Convolutions of any shape in one and two dimensions, and products."""
    seed = draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["MatMul(x, w)", "Gemm <transB = 1> (x, w)", "Conv", "Conv", "Conv"]))
    if kind != "Conv":
        inner, outputs = draw(st.integers(1, 5)), draw(st.integers(1, 4))
        leading = draw(st.lists(st.integers(1, 4), min_size=1, max_size=1 if "Gemm" in kind else 3))
        weight = noise(outputs, inner, seed=seed + 1) if "Gemm" in kind else noise(inner, outputs, seed=seed + 1)
        return case(kind, noise(*leading, inner, seed=seed), weight)
    rank, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    per_group, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, strides, dilations = ([draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(3))
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    spatial = [(k - 1) * d + draw(st.integers(1, 5)) for k, d in zip(kernel, dilations, strict=True)]
    attributes = f"group = {groups}, strides = {strides}, dilations = {dilations}, pads = {pads}"
    x = noise(draw(st.integers(1, 3)), groups * per_group, *spatial, seed=seed)
    return case(f"Conv <{attributes}> (x, w)", x, noise(groups * outputs, per_group, *kernel, seed=seed + 1))


@settings(deadline=None, max_examples=80)
@given(case=cases(), positions=st.sampled_from([1, 3, 10_000]), start=st.integers(0, 5))
def test_the_weight_times_the_columns_is_the_output(case: Case, positions: int, start: int) -> None:
    columns = ColumnSample(case.layer, positions, seed=7)
    result = columns.inputs(case.x, start)
    expected = columns.outputs(case.y, case.x.shape, start)
    matrix = case.layer.matrix(case.weight)
    assert result.shape == (case.layer.groups, matrix.shape[-1], expected.shape[-1])
    np.testing.assert_allclose(matrix @ result, expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(case=cases(), zero_point=st.sampled_from([None, 0, 77, 255]))
def test_columns_of_values_held_in_codes_are_those_of_the_real_values(case: Case, zero_point: int | None) -> None:
    params = None if zero_point is None else QuantParams(UINT8, 0.02, zero_point)
    columns = ColumnSample(case.layer, 3, seed=7)
    x, y = Compressed.of(case.x, params), Compressed.of(case.y, params)
    np.testing.assert_array_equal(columns.inputs(x, 1), columns.inputs(np.asarray(x), 1))
    of_codes, of_reals = (np.asarray(columns.outputs(held, case.x.shape, 1)) for held in (y, np.asarray(y)))
    # Values with a scale for each channel get scales of their own where they are moved: rounded once more.
    step = np.max(y.scale) if isinstance(y, Compressed) and isinstance(y.scale, np.ndarray) else 0
    np.testing.assert_allclose(of_codes, of_reals, rtol=0, atol=step)


@settings(deadline=None, max_examples=40)
@given(case=cases())
def test_without_a_limit_every_output_is_there_in_order(case: Case) -> None:
    columns = ColumnSample(case.layer, 10_000, seed=7)
    channels = np.moveaxis(case.y, 1 if case.layer.op_type == "Conv" else -1, 0)
    expected = channels.reshape(*case.layer.matrix(case.weight).shape[:2], -1)
    np.testing.assert_array_equal(columns.outputs(case.y, case.x.shape, 0), expected)
    if case.layer.op_type == "Conv":
        assert columns.out_shape(case.x.shape) == case.y.shape[2:]


def test_a_sample_has_the_same_columns_whatever_its_batch() -> None:
    layer, _, x, _ = case("Conv <pads = [1, 1, 1, 1]> (x, w)", noise(4, 3, 6, 6), noise(5, 3, 3, 3))
    columns = ColumnSample(layer, 4, seed=1)
    joined = columns.inputs(x, 10)
    parts = [columns.inputs(x[i : i + 1], 10 + i) for i in range(4)]
    np.testing.assert_array_equal(joined, np.concatenate(parts, -1))
    assert not np.array_equal(columns.inputs(x, 0), joined)
    assert not np.array_equal(ColumnSample(layer, 4, seed=2).inputs(x, 10), joined)


@pytest.mark.parametrize("equation", ["Conv <pads = [1, 1, 1, 1]> (x, w)", "MatMul(x, w)"])
def test_of_a_huge_batch_a_share_is_looked_at(equation: str) -> None:
    batch = 3 * MOST_IMAGES + 1
    shapes = ((batch, 3, 4, 4), (5, 3, 3, 3)) if equation.startswith("Conv") else ((batch, 4, 3), (3, 5))
    result = case(equation, *(noise(*shape) for shape in shapes))
    columns = ColumnSample(result.layer, 2, seed=1)
    x, y = columns.inputs(result.x, 0), columns.outputs(result.y, result.x.shape, 0)
    assert 2 * MOST_IMAGES / 2 < x.shape[-1] <= 2 * MOST_IMAGES
    np.testing.assert_allclose(result.layer.matrix(result.weight) @ x, y, rtol=1e-4, atol=1e-5)


def test_chosen_positions_are_distinct_and_cover_the_output() -> None:
    layer = case("Conv(x, w)", noise(1, 1, 9, 9), noise(1, 1, 2, 2)).layer
    columns = ColumnSample(layer, 5, seed=0)
    chosen = [columns.choose((1, 1, 9, 9), i) for i in range(200)]
    assert all(len(set(c)) == 5 and list(c) == sorted(c) for c in chosen if c is not None)
    assert {int(p) for c in chosen if c is not None for p in c} == set(range(64))
    assert columns.choose((1, 1, 3, 3), 0) is None


columns_arrays = hnp.arrays(np.float32, (2, 3, 20), elements=st.floats(-4, 4, width=16))


@given(x=columns_arrays, splits=st.lists(st.integers(1, 19), max_size=6), together=st.sampled_from([1, 5, 30]))
def test_moments_are_those_of_all_columns(x: np.ndarray, splits: list[int], together: int) -> None:
    """However they come, and whether or not they were asked for on the way."""
    result = Moments.empty(2, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "TOGETHER", together)
        for part in np.split(x, sorted(set(splits)), axis=-1):
            result.add(part)
            if together == 5:
                result.second()
    assert result.count == 20
    np.testing.assert_allclose(result.mean, x.mean(-1), atol=1e-6)
    np.testing.assert_allclose(result.second(centred=False), x @ x.transpose(0, 2, 1) / 20, atol=1e-4)
    covariance = np.stack([np.cov(group, bias=True) for group in x.astype(np.float64)])
    np.testing.assert_allclose(result.second(), covariance, atol=1e-4)


def test_columns_that_wait_hold_nothing_but_themselves() -> None:
    """A view would hold the array that it is one of, and with it all memory of a session of ONNX Runtime."""
    array = noise(4, 3)
    result = Moments.empty(1, 3)
    result.add(array.T[None])
    (waiting,) = result.waiting
    assert not np.shares_memory(waiting, array)
    assert waiting.strides[1:] == array.T.strides
    np.testing.assert_array_equal(waiting, array.T[None])


@given(sizes=st.lists(st.integers(1, 9), max_size=8))
def test_joined_columns_are_all_there_in_order(sizes: list[int]) -> None:
    parts = np.split(noise(2, 3, sum(sizes)), np.cumsum(sizes)[:-1], axis=-1) if sizes else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "TOGETHER", 5)
        result = [np.asarray(piece) for piece in moments.joined(parts)]
    assert all(piece.shape[-1] >= 5 for piece in result[:-1])
    none = np.empty((2, 3, 0))
    np.testing.assert_array_equal(np.concatenate([none, *result], -1), np.concatenate([none, *parts], -1))


@given(x=columns_arrays)
def test_wide_layers_keep_the_diagonal(x: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "WIDEST_GRAM", 2)
        result = Moments.empty(2, 3)
    result.add(x)
    assert result.second().shape == (2, 3)
    np.testing.assert_allclose(result.second(), x.astype(np.float64).var(-1), atol=1e-4)
    np.testing.assert_allclose(result.second(centred=False), (x * x).mean(-1), atol=1e-4)


def test_no_columns_give_zeros() -> None:
    assert not Moments.empty(1, 4).second().any()


@given(x=columns_arrays, seed=st.integers(0, 9))
def test_the_error_is_the_mean_squared_output_error(x: np.ndarray, seed: int) -> None:
    delta = noise(2, 5, 3, seed=seed)
    result = Moments.empty(2, 3)
    result.add(x)
    expected = np.square(delta @ x).mean(-1)
    np.testing.assert_allclose(moments.error(delta, result.second(centred=False)), expected, rtol=1e-3, atol=1e-3)
    centred = delta @ (x - x.mean(-1, keepdims=True))
    np.testing.assert_allclose(moments.error(delta, result.second()), np.square(centred).mean(-1), rtol=1e-3, atol=2e-3)
    diagonal = np.ascontiguousarray(np.diagonal(result.second(), axis1=1, axis2=2))
    full = np.stack([np.diag(d) for d in diagonal])
    np.testing.assert_allclose(moments.error(delta, diagonal), moments.error(delta, full), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("outputs", "tolerance"), [(5, 1e-4), (64, 1e-4), (300, 0.05)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_total_error_is_about_the_sum(outputs: int, tolerance: float, diagonal: bool) -> None:
    delta, x = noise(2, outputs, 40), noise(2, 40, 90, seed=1)
    second = x @ x.transpose(0, 2, 1) / 90
    if diagonal:
        second, tolerance = np.diagonal(second, axis1=1, axis2=2), 1e-4
    expected = moments.error(delta, second).sum()
    assert moments.total_error(delta, second) == pytest.approx(expected, rel=tolerance)


@given(count=st.integers(2, 12), width=st.integers(2, 20), seed=st.integers(0, 99))
def test_shrunk_moments_of_few_columns_are_positive_definite(count: int, width: int, seed: int) -> None:
    result = Moments.empty(1, width)
    result.add(noise(1, width, count, seed=seed))
    shrunk = moments.shrunk(result.second(), count)
    assert np.linalg.eigvalsh(shrunk[0].astype(np.float64)).min() > 1e-3
    assert np.trace(shrunk[0]) == pytest.approx(np.trace(result.second()[0]), rel=1e-4)


def test_shrinkage_fades_with_the_number_of_columns() -> None:
    """Towards the truth, of which a few columns say little and many say all."""
    mixing = np.eye(6, dtype=np.float32) + noise(6, 6, scale=0.2)
    truth = mixing @ mixing.T

    def distances(count: int, seeds: int) -> np.ndarray:
        """Mean squared distance from the truth of the moments as they are, and shrunk."""
        result = []
        for seed in range(seeds):
            part = Moments.empty(1, 6)
            part.add((mixing @ noise(6, count, seed=seed))[None])
            second = part.second()
            result.append([np.square(x[0] - truth).sum() for x in (second, moments.shrunk(second, count))])
        return np.mean(result, axis=0)

    plain, shrunk = distances(5, 40)
    assert shrunk < 0.7 * plain
    plain, shrunk = distances(20_000, 1)
    assert shrunk == pytest.approx(plain, rel=0.1)


def test_shrinkage_by_its_formula() -> None:
    """Chen et al. 2010, equation 23."""
    second = np.cov(noise(4, 9)).astype(np.float32)
    n, p, trace, square = 9, 4, np.trace(second), np.trace(second @ second)
    rho = min(1, ((1 - 2 / p) * square + trace**2) / ((n + 1 - 2 / p) * (square - trace**2 / p)))
    assert 0 < rho < 1
    expected = (1 - rho) * second + rho * trace / p * np.eye(4)
    np.testing.assert_allclose(moments.shrunk(second[None], n)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("second", [np.zeros((1, 4, 4), np.float32), np.eye(4, dtype=np.float32)[None]])
def test_shrinkage_of_degenerate_moments_is_finite(second: np.ndarray) -> None:
    assert np.isfinite(moments.shrunk(second, 10)).all()


def test_a_diagonal_is_left_alone() -> None:
    diagonal = np.ones((1, 4), np.float32)
    assert moments.shrunk(diagonal, 2) is diagonal


def test_enough_columns_for_the_gram_matrix() -> None:
    def total(width: int, samples: int) -> int:
        layer = Layer("y", "Conv", "x", "w", None, "y", (8, width, 1, 1), 0)
        return samples * positions_per_sample(layer, samples)

    assert total(16, 100) >= 8192
    assert total(1000, 100) >= 16_000
    assert 9_216 <= total(2304, 100) < 9_400  # four for each input, as products are many
    assert total(5000, 100) * 5000 < 1.01 * MOST_NUMBERS
    assert positions_per_sample(Layer("y", "Conv", "x", "w", None, "y", (8, 1, 1, 1), 0), 10**6) == 1


def test_a_mean_far_above_the_deviations_costs_no_digits() -> None:
    """About zero, float32 sums of squares would give a covariance with negative eigenvalues."""
    deviations = noise(1, 20, 4000, scale=0.5)
    result, about_zero = Moments.empty(1, 20), Moments.empty(1, 20)
    for part in range(0, 4000, 500):
        result.add(deviations[..., part : part + 500] + np.float32(3000))
        about_zero.add(deviations[..., part : part + 500])
    np.testing.assert_allclose(result.second(), about_zero.second(), atol=2e-3)
    np.testing.assert_allclose(result.mean, 3000 + about_zero.mean, rtol=1e-6)
    np.testing.assert_allclose(result.second(centred=False), 3000.0**2, rtol=1e-3)


@pytest.mark.parametrize("diagonal", [False, True])
def test_even_inputs_count_as_much_as_those_seen(diagonal: bool) -> None:
    """The error is that of the columns and, times their mean power, that of the weights themselves."""
    columns, delta = noise(1, 4, 50), noise(1, 3, 4, seed=1)
    second = columns @ columns.transpose(0, 2, 1) / 50
    power = float(np.trace(second[0])) / 4
    value = np.diagonal(second, axis1=1, axis2=2) if diagonal else second
    result = moments.with_even(value)
    assert result.shape == value.shape
    expected = moments.error(delta, value) + power * np.square(delta).sum(-1)
    np.testing.assert_allclose(moments.error(delta, result), expected, rtol=1e-5)


def test_threads_that_ask_at_the_same_time_get_the_same_moments() -> None:
    columns = noise(1, 96, 300)
    expected = np.cov(columns[0], bias=True)
    for _ in range(5):
        shared = Moments.empty(1, 96)
        for start in range(0, 300, 20):
            shared.add(columns[..., start : start + 20])
        with ThreadPoolExecutor(4) as pool:
            result = list(pool.map(lambda made: made.second(), [shared] * 4))
        for second in result:
            np.testing.assert_array_equal(second, result[0])
        np.testing.assert_allclose(result[0][0], expected, atol=1e-4)


def test_the_mean_is_kept_without_touching_what_others_share() -> None:
    shared = Moments.empty(1, 4)
    shared.add(noise(1, 4, 9))
    second = shared.second()
    alone = shared.of_mean()
    assert not alone.gram.size
    np.testing.assert_array_equal(alone.mean, shared.mean)
    np.testing.assert_array_equal(shared.second(), second)


def test_no_columns_change_nothing() -> None:
    """A sample may have no positions, such as an empty cache."""
    columns, empty = noise(2, 5, 3), np.zeros((2, 5, 0), np.float32)
    several, alone = Moments.empty(2, 5), Moments.empty(2, 5)
    for part in (empty, columns, empty):
        several.add(part)
    alone.add(columns)
    assert several.count == 3
    assert np.array_equal(several.second(), alone.second())
    nothing = Moments.empty(2, 5)
    nothing.add(empty)
    assert nothing.count == 0
    assert not nothing.second().any()
    assert not nothing.mean.any()


def test_columns_that_are_not_finite_are_left_out_and_counted() -> None:
    columns, flawed = noise(1, 4, 9), noise(1, 4, 5, seed=1)
    flawed[0, 2, :3] = np.nan, np.inf, -np.inf
    result, alone = Moments.empty(1, 4), Moments.empty(1, 4)
    result.add(flawed)
    result.add(columns)
    alone.add(np.concatenate([flawed[..., 3:], columns], -1))
    assert (result.count, result.left_out) == (11, 3)
    np.testing.assert_allclose(result.second(), alone.second(), rtol=1e-5)
