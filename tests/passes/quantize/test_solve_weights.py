from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import TABLE_CONSTANTS, TABLES

from ptqc.calibration.samples import Samples
from ptqc.formats import FLOAT16, FLOAT32, Codebook, Integer, Palette, TwoOfFour
from ptqc.ir import external
from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.quantized_weight import Candidates
from ptqc.passes.quantize import gptq, moments, solve_weights
from ptqc.passes.quantize.moments import Moments
from ptqc.passes.quantize.phases import CalibrationStats, WeightCandidates
from ptqc.passes.quantize.solve_weights import NO_CACHE, CandidateCache, SolveWeights, direct, suited
from ptqc.utils.deadline import Pace

NO_SAMPLES: list[None] = []


def measured(model: ir.Model) -> CalibrationStats:
    """A setting with random moments for every layer."""
    layers = find_layers(model)
    context = CalibrationStats(model, layers, find_weights(model, layers), [], [], NO_SAMPLES, NO_SAMPLES)  # type: ignore[arg-type]
    for number, weight in enumerate(w for w in context.weights if w.layers):
        layer = weight.layers[0]
        width = int(np.prod(layer.shape)) // layer.channels
        for seed, split in ((number, context.moments), (number + 100, context.held_moments)):
            split[weight.name] = Moments.empty(layer.groups, width)
            mixing = noise(layer.groups, width, width, seed=number)
            split[weight.name].add(mixing @ noise(layer.groups, width, 50, seed=seed))
    return context


def solved(model: ir.Model, bits: tuple[int, ...] = (2, 4, 8), cache: CandidateCache = NO_CACHE) -> WeightCandidates:
    """The same, solved."""
    return SolveWeights(bits, cache).apply(measured(model)).output


@pytest.fixture(scope="module")
def tables() -> WeightCandidates:
    return solved(parse(TABLES, **TABLE_CONSTANTS))


def test_every_weight_in_every_format(tables: WeightCandidates) -> None:
    result = {(name, str(form)) for name, form in tables.solutions}
    every = {"float32", "float16", "int2", "int4", "int8", "codebook2", "codebook4"}
    pairs = {(layer.weight, f"pairs{bits}") for layer in tables.layers for bits in range(3, 9)}
    half = {"palette1", *(f"sparse{bits}" for bits in range(1, 7)), *(f"sparsebook{bits}" for bits in range(2, 5))}
    assert result == {(w, f) for w in TABLE_CONSTANTS for f in every} | {("mask", f) for f in half} | pairs
    assert set(tables.errors) == set(tables.solutions)


def test_solutions_have_the_weights_shape_and_come_close(tables: WeightCandidates) -> None:
    for (name, form), solution in tables.solutions.items():
        values = TABLE_CONSTANTS[name]
        assert (solution.form, solution.weight.shape, solution.weight.dtype) == (form, values.shape, np.float32)
        if form == Integer(8):
            assert np.abs(solution.weight - values).max() < 0.05 * np.abs(values).max()
        if not form.has_codes:
            np.testing.assert_allclose(solution.weight, values, rtol=1e-3)


def test_errors_fall_with_the_bits_and_exact_formats_have_none(tables: WeightCandidates) -> None:
    for name in TABLE_CONSTANTS:
        errors = [tables.errors[name, Integer(bits)] for bits in (2, 4, 8)]
        assert errors == sorted(errors, reverse=True)
        assert tables.errors[name, FLOAT32] == tables.errors[name, FLOAT16] == 0
        assert name == "mask" or errors[-1] > 0


def test_errors_of_layers_are_those_of_their_outputs_on_held_back_columns(tables: WeightCandidates) -> None:
    (layer,) = (layer for layer in tables.layers if layer.weight == "m")
    held = measured(parse(TABLES, **TABLE_CONSTANTS)).held_moments["m"].second(centred=False)
    matrix = layer.matrix(TABLE_CONSTANTS["m"])
    solution = tables.solutions["m", Integer(4)]
    expected = moments.error(matrix - layer.matrix(solution.weight), held).sum() / moments.error(matrix, held).sum()
    assert tables.errors["m", Integer(4)] == pytest.approx(float(expected), rel=1e-4)


# By whether a bias makes up for the mean error of the weights.
PRODUCTS = {
    "g (float[N, 5, 6] x) => (float[N, 5, 4] y) { y = MatMul(x, w) }": False,
    "g (float[N, 6] x) => (float[N, 4] y) { p = Mul(x, x) h = MatMul(p, w) y = Log(h) }": False,
    "g (float[N, 6] x) => (float[N, 4] y) { y = Gemm(x, w) }": True,
}


@pytest.mark.parametrize("graph", PRODUCTS)
def test_the_mean_error_counts_where_no_bias_makes_up_for_it(graph: str) -> None:
    """On inputs far from zero on the whole."""
    w, held = abs(noise(6, 4)), 3 + noise(6, 60, seed=1)
    context = measured(parse(graph, w=w))
    for split, columns in ((context.moments, 3 + noise(6, 200)), (context.held_moments, held)):
        split["w"] = Moments.empty(1, 6)
        split["w"].add(columns[None])
    made = SolveWeights((2, 3)).apply(context).output
    size = np.var if PRODUCTS[graph] else lambda x, axis: np.square(x).mean(axis)
    for bits in (2, 3):
        lost = (w - made.solutions["w", Integer(bits)].weight).T @ held
        expected = size(lost, axis=1).sum() / size(w.T @ held, axis=1).sum()
        assert made.errors["w", Integer(bits)] == pytest.approx(float(expected), rel=1e-3)
        # Weights that answer for the mean have next to none of it left.
        drift = float(np.square(lost.mean(1)).sum() / np.square(lost).mean(1).sum())
        assert PRODUCTS[graph] or drift < 0.3


def test_layers_are_solved_by_gptq_along_their_channels() -> None:
    model = parse("g (float[N, 4, T] x) => (float[N, 6, S] y) { y = Conv <group = 2> (x, w) }", w=noise(6, 2, 3))
    context = solved(model)
    (layer,) = context.layers
    result = measured(model).moments["w"]
    second = moments.shrunk(result.second(), result.count)
    matrix, form = layer.matrix(noise(6, 2, 3)), Integer(4)
    target = gptq.RoundingTarget(matrix, gptq.grids_for(matrix, second, [form])[form], rounds=1)
    (expected,) = gptq.round_best([target], second)
    solution = context.solutions["w", Integer(4)]
    np.testing.assert_allclose(layer.matrix(solution.weight), expected.weight, atol=0.05)
    assert (solution.codes.shape, solution.scale.shape, solution.axis) == ((6, 2, 3), (6,), 0)


def test_two_of_four_inputs_of_each_tap_are_kept() -> None:
    """As the weight would be solved whose columns are tap by tap."""
    form = TwoOfFour(6)
    w, graph = noise(6, 8, 3, 2), "g (float[N, 8, T, U] x) => (float[N, 6, S, V] y) { y = Conv (x, w) }"
    context = measured(parse(graph, w=w))
    result = SolveWeights((4,), sparsity="2:4").apply(context).output.solutions["w", form].codes
    by_tap = result.transpose(0, 2, 3, 1)
    assert ((by_tap != 0).reshape(-1, 4).sum(1) == 2).all()
    places = np.arange(48).reshape(8, 6).T.reshape(-1)
    matrix, seen = w.transpose(0, 2, 3, 1).reshape(1, 6, 48), measured(parse(graph, w=w)).moments["w"]
    second = moments.shrunk(seen.second(), seen.count)[:, places[:, None], places]
    target = gptq.RoundingTarget(matrix, gptq.grids_for(matrix, second, [form])[form], rounds=1)
    (expected,) = gptq.round_best([target], second)
    assert np.mean(expected.codes.reshape(-1) == by_tap.reshape(-1)) > 0.98


def test_a_convolution_that_arrives_two_of_four_by_inputs_is_taken_for_that() -> None:
    w, graph = noise(6, 4, 3, 4), "g (float[N, 4, T, U] x) => (float[N, 6, S, V] y) { y = Conv (x, w) }"
    along_rows = np.where(np.abs(w) >= np.sort(np.abs(w), -1)[..., 2:3], w, np.float32(0))
    for kernel, forms in ((np.moveaxis(along_rows, -1, 1), [TwoOfFour(3), Integer(3)]), (along_rows, [Integer(3)])):
        model = parse(graph, w=np.ascontiguousarray(kernel))
        (weight,) = find_weights(model, find_layers(model))
        assert suited(weight, kernel, [TwoOfFour(3), Integer(3)]) == forms


FACTORED, DIAGONAL = gptq.Factored, np.ndarray


@pytest.mark.parametrize(
    ("samples", "columns", "tried"),
    [(32, 24, [FACTORED]), (31, 24, [FACTORED, DIAGONAL]), (32, 23, [FACTORED, DIAGONAL])],
)
def test_each_weight_for_itself_only_where_there_is_little_data(
    samples: int, columns: int, tried: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse("g (float[N, 6] x) => (float[N, 4] y) { y = MatMul(x, w) }", w=noise(6, 4))
    context = measured(model)
    context = replace(context, tuning=cast(Samples, [None] * samples))
    context.moments["w"] = Moments.empty(1, 6)
    context.moments["w"].add(noise(1, 6, columns))
    kinds: list[type] = []
    round_best = gptq.round_best
    monkeypatch.setattr(
        gptq,
        "round_best",
        lambda targets, second, *more: kinds.append(type(second)) or round_best(targets, second, *more),
    )
    context = SolveWeights((4,)).apply(context).output
    assert kinds == tried


def test_only_the_means_of_the_moments_stay(tables: WeightCandidates) -> None:
    assert not tables.held_moments
    assert tables.moments["m"].gram.size == 0
    np.testing.assert_array_equal(
        tables.moments["m"].mean, measured(parse(TABLES, **TABLE_CONSTANTS)).moments["m"].mean
    )


@dataclass
class Remembered:
    """A cache that forgets some weights."""

    kept: dict[str, Candidates] = field(default_factory=dict)
    puts: list[list[str]] = field(default_factory=list)
    cut_short: bool = False

    def find(self, weights: Sequence[Weight]) -> Candidates | None:
        return self.kept.get(weights[0].name)

    def put(self, weights: Sequence[Weight], candidates: Candidates, cut_short: bool = False) -> Candidates:
        self.cut_short |= cut_short
        self.puts.append([weight.name for weight in weights])
        self.kept[weights[0].name] = candidates
        return candidates


def test_what_is_on_the_shelf_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_weights, "TOGETHER", 300)
    model, cache = parse(TABLES, **TABLE_CONSTANTS), Remembered()
    first = solved(model, cache=cache)
    assert [name for group in cache.puts for name in group] == [weight.name for weight in first.weights]
    assert len(cache.puts) > 1
    forgotten = cache.puts[0]
    del cache.kept[forgotten[0]]
    again = solved(model, cache=cache)
    assert cache.puts[-1] == forgotten
    assert list(again.solutions) == list(first.solutions)
    assert all((again.solutions[key] is first.solutions[key]) != (key[0] in forgotten) for key in first.solutions)
    assert again.errors == first.errors
    assert not cache.cut_short


def test_without_time_each_weight_is_rounded_for_itself_in_few_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = parse(TABLES, **TABLE_CONSTANTS), Remembered()
    monkeypatch.setattr(Pace, "part", lambda _: 0.5)
    kinds: list[type] = []
    round_best = gptq.round_best
    monkeypatch.setattr(
        gptq,
        "round_best",
        lambda targets, second, *more: kinds.append(type(second)) or round_best(targets, second, *more),
    )
    context = solved(model, cache=cache)
    assert set(kinds) == {DIAGONAL}
    assert cache.cut_short
    layers = {weight.name for weight in context.weights if weight.layers}
    families = {form.family for name, form in context.solutions if name in layers}
    assert families == {"float", "int"}


@pytest.mark.parametrize(("part", "families"), [(1.0, {"float", "int", "tcq"}), (0.5, {"float", "int"})])
def test_without_time_no_paths_are_searched_for_in_tables(
    part: float, families: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse("g (int64[N] i) => (float[N, 48] y) { y = Gather(t, i) }", t=noise(64, 48))
    monkeypatch.setattr(Pace, "part", lambda _: part)
    cache = Remembered()
    context = SolveWeights((2, 4), cache, only=frozenset({"int", "tcq"})).apply(measured(model)).output
    assert {form.family for _, form in context.solutions} == families
    assert cache.cut_short == (part < 1)


def test_what_half_precision_cannot_hold() -> None:
    model = parse("g (float[N, 300] x) => (float[N, 300] y) { y = Mul(x, w) }", w=noise(1, 300, scale=1e5))
    forms = {form for _, form in solved(model).solutions}
    assert forms == {FLOAT32, Integer(2), Integer(4), Integer(8), Codebook(2), Codebook(4)}


def weight_of(values: np.ndarray) -> Weight:
    return Weight("w", values.shape, 0, ())


@pytest.mark.parametrize(("distinct", "bits"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 4), (16, 4)])
def test_palettes_are_exact(distinct: int, bits: int) -> None:
    values = np.resize(noise(distinct), (7, 9))
    result = list(direct(weight_of(values), values))[-1]
    assert result.form == Palette(bits)
    np.testing.assert_array_equal(result.weight, values)
    assert result.codes.dtype == np.uint8


def test_more_values_have_no_palette() -> None:
    assert [result.form for result in direct(weight_of(noise(17)), noise(17))] == [FLOAT32, FLOAT16]
    hidden = np.zeros((1000, 4), np.float32)
    hidden[1:20, 0] = np.arange(19)  # not among the rows looked at first
    assert [result.form for result in direct(weight_of(hidden), hidden)] == [FLOAT32, FLOAT16]


def test_formats_of_a_large_model_are_solved_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse("g (float[N,12] x) => (float[N,20] y) { y = MatMul(x, w) }", w=noise(12, 20))
    (weight,) = find_weights(model, find_layers(model))
    forms = solve_weights.formats_of((2, 3, 4), [weight])
    known = len(solve_weights.possible(weight, forms))
    monkeypatch.setattr(solve_weights, "FORMAT_BYTES", 3 * 24 * 12 * 20)
    whole, part = (solve_weights.solving_bytes(weight, forms, in_files=which) for which in (False, True))
    assert whole - part == (known - 3) * 24 * 12 * 20
    all_at_once = solved(model, (2, 3, 4)).solutions
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    for key, solution in solved(model, (2, 3, 4)).solutions.items():
        assert np.array_equal(solution.codes, all_at_once[key].codes)
        assert np.allclose(solution.scale, all_at_once[key].scale, rtol=1e-5)
