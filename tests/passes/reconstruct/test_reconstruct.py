"""Whole networks, reconstructed layer by layer."""

import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES, array
from mostly_slow import mostly_slow
from reconstructing import error, measured, outputs, plan_of, table

from ptqc.errors import NotFinite
from ptqc.execution import tensors
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.tensors import Held
from ptqc.execution.walk import Slicer, Walk
from ptqc.formats import FLOAT16, Codebook, Format, Integer, Palette, Scaled
from ptqc.ir import external
from ptqc.ir.layers import Layer, find_layers
from ptqc.ir.nodes import replace_constant, set_constant
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.passes.quantize import gptq
from ptqc.passes.quantize.phases import Analysis, AnalyzedPlan
from ptqc.passes.reconstruct import reconstruct
from ptqc.passes.reconstruct.layer_problem import LayerInputs, LayerProblem
from ptqc.passes.reconstruct.reconstruct import (
    GENEROUS_STRENGTHS,
    STRENGTHS,
    Earlier,
    Reconstruct,
    _float_outputs,
    _State,
    are_paired,
    behind_choices,
    choices_of,
    reconstruct_all,
)
from ptqc.utils import store
from ptqc.utils.deadline import NEVER, Deadline


@pytest.fixture(scope="module")
def residual() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def context(residual: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(40)]
    return measured(residual, tmp_path_factory.mktemp("samples"), feeds)


DEPTHWISE = """g (float[N, 64, 16, 16] x) => (float[N, 64, 16, 16] y) {
    y = Conv<group = 64, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
}"""

UNSEEN: list[Feeds] = [{"x": noise(16, 3, 8, 8, seed=1000)}]


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("bits", mostly_slow([2, 3, 4, 8], 2, 8))
def test_unseen_outputs_come_closer_to_float(residual: ir.Model, context: Analysis, bits: int, quantize: bool) -> None:
    plan = plan_of(context, Integer(bits), quantize)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    before, after = (error(residual, plan, t, UNSEEN) for t in (table(context, plan, residual), tuned))
    assert after < (0.7 if bits < 8 else 1.5) * before
    assert bits > 2 or tuned.biases["e"] is not None  # a layer that had none
    for name, solution in tuned.weights.items():
        assert solution.form == Integer(bits)
        assert solution.codes.shape == array(residual, name).shape


def test_the_same_numbers_every_time(context: Analysis) -> None:
    plan = plan_of(context, Integer(3))
    first, second = (Reconstruct().apply(AnalyzedPlan(context, plan)).output for _ in range(2))
    for name, solution in first.weights.items():
        np.testing.assert_array_equal(solution.codes, second.weights[name].codes)
        np.testing.assert_array_equal(solution.scale, second.weights[name].scale)
    for name, bias in first.biases.items():
        np.testing.assert_array_equal(bias, second.biases[name])


def test_the_mean_of_every_channel_is_kept(residual: ir.Model, context: Analysis) -> None:
    """On what was tuned on, with all columns looked at, unless the bias was better left alone."""
    plan = plan_of(context, Integer(2))
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    feeds = list(context.tuning.batches(40))
    real = Runner(residual, ["c", "d"]).run(feeds[0])
    copy = parse(RESIDUAL.replace("(float[N, 5] y)", "(float[N, 5] y, float[N, 4, 8, 8] c)"), **CONSTANTS)
    result = outputs(copy, plan, tuned, feeds)[0]["c"]
    axes = (0, 2, 3)
    drift = np.abs(result.mean(axes) - real["c"].mean(axes)) / real["c"].std(axes)
    assert drift.max() < 0.02


def test_formats_that_are_exact_keep_the_weights(residual: ir.Model, context: Analysis) -> None:
    plan = plan_of(context, FLOAT16)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    for name, solution in tuned.weights.items():
        np.testing.assert_array_equal(solution.codes, array(residual, name).astype(np.float16))


def test_shared_weights_keep_the_numbers_of_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = """g (float[N, 6, 8, 8] x) => (float[N, 6, 8, 8] y) {
        c = Conv(x, w) r = Relu(c) d = Conv(r, w, b) y = Conv(d, w)
    }"""
    model = parse(graph, w=noise(6, 6, 1, 1), b=noise(6, seed=1))
    feeds: list[Feeds] = [{"x": noise(1, 6, 8, 8, seed=seed)} for seed in range(24)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, Integer(4))
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    calls = []
    monkeypatch.setattr(LayerProblem, "rounded", lambda made, *_: calls.append(made.layer.name) or tuned.weights["w"])
    Reconstruct().apply(AnalyzedPlan(context, plan))
    assert calls == []
    assert dict(tuned.weights) == {"w": context.solutions["w", Integer(4)]}
    assert set(tuned.biases) == {"c", "d", "y"}
    assert error(model, plan, tuned, feeds[-8:]) < 0.1


def test_float_outputs_stay_whole_while_the_walk_goes_on(residual: ir.Model, context: Analysis) -> None:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(3)]
    layers = {layer.name: layer for layer in context.layers}
    result = list(_float_outputs(Walk(Slicer(residual), feeds), layers, NEVER))
    expected = list(map(Runner(residual, list(layers)).run, feeds))
    for name, outputs_of in zip(layers, result, strict=True):
        for batch, one in zip(outputs_of[name], expected, strict=True):
            np.testing.assert_allclose(batch, one[name], rtol=1e-4, atol=1e-5)


def test_without_time_the_layers_keep_the_table(residual: ir.Model, context: Analysis) -> None:
    plan = plan_of(context, Integer(3))
    (result,) = reconstruct_all(AnalyzedPlan(replace(context, deadline=Deadline(0.0)), plan), [0])
    assert result.solved_alone == len(context.layers)
    for weight in context.weights:
        assert result.weights[weight.name] is context.solutions[weight.name, Integer(3)]
    for layer in context.layers:
        own = None if layer.bias is None else array(residual, layer.bias).reshape(-1)
        np.testing.assert_array_equal(result.biases[layer.name], own)


def test_where_time_ends_between_layers_those_before_are_settled(
    context: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, True, *[False] * 10])
    monkeypatch.setattr(Deadline, "leaves", lambda *_: next(answers))
    plan = plan_of(context, Integer(3))
    (result,) = reconstruct_all(AnalyzedPlan(context, plan), [0])
    monkeypatch.undo()
    (whole,) = reconstruct_all(AnalyzedPlan(context, plan), [0])
    settled = len(context.layers) - result.solved_alone
    assert 0 < settled < len(context.layers)
    for number, layer in enumerate(context.layers):
        same = np.array_equal(result.weights[layer.weight].codes, whole.weights[layer.weight].codes)
        assert same or number >= settled


def test_draws_together_are_those_alone(context: Analysis) -> None:
    plan = plan_of(context, Integer(3))
    together = reconstruct_all(AnalyzedPlan(context, plan), [0, 1])
    for draw, result in enumerate(together):
        (alone,) = reconstruct_all(AnalyzedPlan(context, plan), [draw])
        for name, solution in alone.weights.items():
            np.testing.assert_array_equal(solution.weight, result.weights[name].weight)
    different = [not np.array_equal(together[0].weights[n].weight, s.weight) for n, s in together[1].weights.items()]
    assert any(different)


def test_layers_before_the_first_that_differs_keep_earlier_numbers(
    context: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(context, Integer(3))
    last = context.layers[-2].weight
    other = plan.with_formats({**plan.formats, last: Integer(4)})
    earlier = Earlier(plan, dict(enumerate(reconstruct_all(AnalyzedPlan(context, plan), [0, 1]))))
    whole = reconstruct_all(AnalyzedPlan(context, other), [0, 1])
    solved = []
    solve = _State.solve
    monkeypatch.setattr(_State, "solve", lambda self, layer, y: solved.append(layer.name) or solve(self, layer, y))
    again = reconstruct_all(AnalyzedPlan(context, other), [0, 1], earlier=earlier)
    assert sorted(solved) == sorted(2 * [layer.name for layer in context.layers[-2:]])
    for one, two in zip(whole, again, strict=True):
        assert one.biases.keys() == two.biases.keys()
        for name, solution in one.weights.items():
            np.testing.assert_array_equal(solution.weight, two.weights[name].weight)


def test_weights_beyond_memory_are_settled_a_few_outputs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same numbers, which are mapped from a file."""
    graph = "g (float[N,24] x) => (float[N,16] y) { a = MatMul(x, u) b = Relu(a) y = MatMul(b, v) }"
    model = parse(graph, u=noise(24, 40), v=noise(40, 16, seed=1))
    analysis = measured(model, tmp_path, [{"x": noise(1, 24, seed=seed)} for seed in range(40)])
    plan = plan_of(analysis, Integer(2), False)
    (whole,) = reconstruct_all(AnalyzedPlan(analysis, plan), [0])
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    monkeypatch.setattr(gptq, "NUMBERS", 100)
    (apart,) = reconstruct_all(AnalyzedPlan(analysis, plan), [0])
    for name, solution in whole.weights.items():
        assert np.array_equal(apart.weights[name].codes, solution.codes)
        assert np.allclose(apart.weights[name].scale, solution.scale, rtol=1e-4)
    assert not all(result.codes.flags.writeable for result in apart.weights.values())


def test_values_that_wait_in_files_give_the_same(context: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, kept = plan_of(context, Integer(3)), list[np.ndarray]()
    (in_memory,) = reconstruct_all(AnalyzedPlan(context, plan), [0])
    in_file = store.spool
    monkeypatch.setattr(tensors, "SMALL", 0)
    monkeypatch.setattr(reconstruct, "WALK_MEMORY", 0)
    monkeypatch.setattr(store, "spool", lambda array: kept.append(array) or in_file(array))
    (in_files,) = reconstruct_all(AnalyzedPlan(context, plan), [0])
    assert len(kept) > len(plan.layers)
    for name, solution in in_memory.weights.items():
        assert np.array_equal(in_files.weights[name].weight, solution.weight)
    for name, bias in in_memory.biases.items():
        np.testing.assert_array_equal(in_files.biases[name], bias)


def test_more_samples_of_a_depthwise_layer_take_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns are many times as large as its inputs; in float32, those of 60 samples would take 40 MB."""
    model = parse(DEPTHWISE, w=noise(64, 1, 3, 3))
    feeds: list[Feeds] = [{"x": noise(1, 64, 16, 16, seed=seed)} for seed in range(90)]
    monkeypatch.setattr(reconstruct, "WALK_MEMORY", 0)
    monkeypatch.setattr(reconstruct, "WALK_BYTES", 2**40)
    peaks = []
    for count in (30, 90):
        folder = tmp_path / str(count)
        folder.mkdir()
        context = measured(model, folder, feeds[:count], held=count // 4)
        planned = AnalyzedPlan(context, plan_of(context, Integer(4)))
        tracemalloc.start()
        reconstruct_all(planned, [0])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 8 * 2**20


@pytest.mark.parametrize("where", [_State, Walk])
def test_an_error_of_one_walk_is_raised_once_all_ended(
    where: type, context: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(where, "solve" if where is _State else "step", fail)
    before = threading.active_count()
    with pytest.raises(KeyError, match="planted"):
        reconstruct_all(AnalyzedPlan(context, plan_of(context, Integer(3))), [0, 1])
    waited = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < waited:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_tables_and_products_without_bias(tmp_path: Path) -> None:
    model = parse(TABLES, **TABLE_CONSTANTS)
    feeds: list[Feeds] = [{"i": np.random.default_rng(seed).integers(0, 50, (1, 10))} for seed in range(24)]
    context = measured(model, tmp_path, feeds)
    forms = {"embedding": Integer(4), "m": Integer(3), "h": Integer(4), "mask": Palette(1)}
    plan = plan_of(context, forms)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    for name in ("embedding", "mask"):
        assert tuned.weights[name] is context.solutions[name, forms[name]]
    assert tuned.biases == {"z": None, "y": None}
    assert error(model, plan, tuned, feeds[-8:]) < error(model, plan, table(context, plan, model), feeds[-8:])


def test_layers_are_solved_on_the_inputs_that_they_will_see(
    residual: ir.Model, context: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(context, Integer(3))
    seen: dict[str, LayerProblem] = {}
    monkeypatch.setattr(LayerProblem, "target", lambda made, *_: seen.setdefault(made.layer.name, made) and made.weight)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    assert set(seen) == {layer.name for layer in plan.layers}
    copy = residual.clone()
    names = {layer.input for layer in plan.layers} - {"x"}
    copy.graph.outputs.extend(v for node in copy.graph for v in node.outputs if v.name in names)
    feeds = [*context.tuning.batches(8), *context.held_back.batches(8)]
    values = outputs(copy, plan, tuned, feeds)
    for layer in plan.layers:
        columns = [np.asarray(x) for x in seen[layer.name].seen.x]
        scale = plan.params[layer.input].scale
        steps = np.concatenate([x.ravel() for x in columns]) / np.float32(scale)
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        reach = max(float(np.abs({**feed, **one}[layer.input]).max()) for one, feed in zip(values, feeds, strict=True))
        assert max(float(np.abs(x).max()) for x in columns) <= reach + scale / 2


def test_least_squares_targets_compete(context: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    """At two bits the inputs drift so far that some layer does better with other weights than its own."""
    plan = plan_of(context, Integer(2))
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    monkeypatch.setattr(LayerProblem, "target", lambda made, *_: made.weight)
    without = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    assert any(not np.array_equal(s.codes, without.weights[name].codes) for name, s in tuned.weights.items())


@pytest.mark.parametrize(("bits", "strengths"), [(4, STRENGTHS), (8, GENEROUS_STRENGTHS)])
def test_each_draw_goes_another_part_of_the_way(
    bits: int, strengths: tuple[float, ...], context: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, result = LayerProblem.rounded, list[float]()

    def rounded(made: LayerProblem, form: Scaled, strength: float) -> QuantizedWeight:
        result.append(strength)
        return right(made, form, strength)

    monkeypatch.setattr(LayerProblem, "rounded", rounded)
    plan = plan_of(context, Integer(bits))
    layers, expected = len(plan.layers), list[float]()
    for draw, strength in enumerate((*strengths, strengths[0])):
        Reconstruct(draw).apply(AnalyzedPlan(context, plan))
        expected += [strength] * layers
    assert result == expected
    assert max(strengths) == 1.0


# The variance that a float model finds by E[x²] − E[x]² is just positive; from values in 16 bits it may be negative.
DEVIATION = """g (float[N, 4] x) => (float[N, 2] y) {
    h = MatMul(x, w)
    square = Mul(h, h)
    mean = ReduceMean<keepdims = 1>(h, axes)
    mean_square = ReduceMean<keepdims = 1>(square, axes)
    squared_mean = Mul(mean, mean)
    variance = Sub(mean_square, squared_mean)
    deviation = Sqrt(variance)
    normal = Div(h, deviation)
    y = MatMul(normal, v)
}"""

RECIPROCAL = """g (float[N, 4] x) => (float[N, 2] y) {
    h = MatMul(x, w)
    gate = Sigmoid(h)
    a = MatMul(gate, v)
    other = Reciprocal(gate)
    b = MatMul(other, v)
    y = Add(a, b)
}"""


def test_what_16_bits_alone_make_of_it_is_no_fault_of_the_model(tmp_path: Path) -> None:
    w = np.ones((4, 4), np.float32) + noise(4, 4, scale=0.02)
    model = parse(DEVIATION, w=w, v=noise(4, 2), axes=np.array([1]))
    context = measured(model, tmp_path, [{"x": 1 + noise(1, 4, seed=seed, scale=0.02)} for seed in range(40)])
    plan = plan_of(context, Integer(8), quantize=False)
    assert (
        error(
            model, plan, Reconstruct().apply(AnalyzedPlan(context, plan)).output, [{"x": np.ones((1, 4), np.float32)}]
        )
        < 1
    )


def test_an_infinity_of_the_quantized_model_is_named(tmp_path: Path) -> None:
    model = parse(RECIPROCAL, w=noise(4, 4), v=noise(4, 2))
    context = measured(model, tmp_path, [{"x": noise(1, 4, seed=seed)} for seed in range(40)])
    plan = plan_of(context, Integer(8))
    assert "gate" in plan.params  # a code of 0 stands for all that is small
    with pytest.raises(NotFinite, match=r"Reciprocal 'other' is infinite in \d+ of \d+ elements"):
        Reconstruct().apply(AnalyzedPlan(context, plan))


# Filters of powers: narrow ones that have next to nothing in common, and rows of zeros between them.
FILTERS = {
    "MatMul": "g (float[N, 16] x) => (float[N, 6] y) { p = Mul(x, x) h = MatMul(p, w) s = Add(h, tiny) y = Log(s) }",
    "Gemm": "g (float[N, 16] x) => (float[N, 6] y) { p = Mul(x, x) s = Gemm(p, w, tiny) y = Log(s) }",
}


@pytest.mark.parametrize("form", mostly_slow([Integer(3), Integer(8), Codebook(3)], Codebook(3)), ids=str)
@pytest.mark.parametrize("op", FILTERS)
def test_what_a_logarithm_is_taken_of_stays_positive(op: str, form: Format, tmp_path: Path) -> None:
    w = np.maximum(1 - abs(np.arange(16)[:, None] - np.arange(1, 16, 2.6)) / 2.6, 0).astype(np.float32)
    model = parse(FILTERS[op], w=w, tiny=np.full(6, 1e-6, np.float32))
    mixed = noise(16, 16) * np.geomspace(1, 1e-3, 16, dtype=np.float32)
    feeds = [{"x": noise(1, 16, seed=seed) @ mixed} for seed in range(40)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, form, quantize=False)
    for tuned in (table(context, plan, model), *reconstruct_all(AnalyzedPlan(context, plan), [0, 1])):
        (solution,), (bias,) = tuned.weights.values(), tuned.biases.values()
        assert solution.weight.min() >= 0
        assert bias is None or bias.min() >= 0


ATTENTION = """g (float[N, L, 8] x) => (float[N, L, 6] y) {
    r = Relu(x) q = MatMul(r, a) k = MatMul(r, b) s = Sigmoid(q) t = Mul(s, k) v = MatMul(r, c) y = Add(t, v)
}"""


def test_layers_that_see_the_same_share_it_as_long_as_one_is_still_to_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse(ATTENTION, a=noise(8, 6), b=noise(8, 6, seed=1), c=noise(8, 6, seed=2))
    context = measured(model, tmp_path, [{"x": noise(1, 9, 8, seed=seed)} for seed in range(24)])
    plan = plan_of(context, Integer(3))
    drawn, right, held = list[str](), _State._drawn, list[int]()
    settle = _State._layer_outputs

    def draw(state: _State, layer: Layer) -> LayerInputs:
        drawn.append(layer.name)
        return right(state, layer)

    def settled(state: _State, layer: Layer, wanted: list[Held]) -> list[Held]:
        result = settle(state, layer, wanted)
        held.append(len(state.shared))
        return result

    monkeypatch.setattr(_State, "_drawn", draw)
    monkeypatch.setattr(_State, "_layer_outputs", settled)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    assert drawn == ["q"]
    assert held == [1, 1, 0]
    monkeypatch.setattr(_State, "_inputs_of", draw)
    alone = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    assert drawn == ["q", "q", "k", "v"]
    for name, solution in alone.weights.items():
        np.testing.assert_array_equal(tuned.weights[name].codes, solution.codes)
        np.testing.assert_array_equal(tuned.weights[name].scale, solution.scale)


# Rows in the order of a score that small errors change, then layers, then what does not depend on the order.
SORTED = """g (float[N,40,16] x) => (float[N,8] y) {
    h = MatMul(x, w1)
    r = Relu(h)
    s = MatMul(r, ws)
    q = Squeeze(s, last)
    v, i = TopK<axis=1>(q, k)
    i3 = Unsqueeze(i, last)
    e = Unsqueeze(v, last)
    ix = Expand(i3, sizes)
    rows = GatherElements<axis=1>(r, ix)
    z = Add(rows, e)
    a = MatMul(z, w2)
    ar = Relu(a)
    p = ReduceMean<keepdims=0>(ar, rows_axis)
    y = Gemm(p, w3)
}"""
SORTED_SHAPES = {"w1": (16, 32), "ws": (32, 1), "w2": (32, 32), "w3": (32, 8)}
SORTED_CONSTANTS = {
    **{name: noise(*shape, seed=i, scale=0.2) for i, (name, shape) in enumerate(SORTED_SHAPES.items())},
    "k": np.array([40]),
    "last": np.array([-1]),
    "sizes": np.array([1, 40, 32]),
    "rows_axis": np.array([1]),
}


def test_layers_behind_a_choice_are_fitted_to_the_rows_that_the_float_model_chooses(tmp_path: Path) -> None:
    model = parse(SORTED, **SORTED_CONSTANTS)
    feeds: list[Feeds] = [{"x": noise(1, 40, 16, seed=seed)} for seed in range(40)]
    samples = replace(measured(model, tmp_path, feeds), sites=())
    plan = plan_of(samples, Integer(8), quantize=False)
    tuned = Reconstruct().apply(AnalyzedPlan(samples, plan)).output
    unseen: list[Feeds] = [{"x": noise(1, 40, 16, seed=1000 + seed)} for seed in range(20)]
    real, result = list(map(Runner(model).run, unseen)), run_with(model, tuned, unseen)
    before = run_with(model, table(samples, plan, model), unseen)
    errors = [
        sum(np.square(a["y"] - b["y"]).sum() for a, b in zip(real, several, strict=True))
        for several in (before, result)
    ]
    assert errors[1] < 0.5 * errors[0]


def run_with(model: ir.Model, tuned: QuantizedParameters, feeds: list[Feeds]) -> list[dict[str, np.ndarray]]:
    """Outputs with these weights, and the biases of layers that take one."""
    copy = model.clone()
    for name, solution in tuned.weights.items():
        set_constant(copy, name, solution.weight)
    for node in list(copy.graph):
        bias = tuned.biases.get(str(node.outputs[0].name))
        if bias is not None and node.op_type == "Gemm":
            replace_constant(copy, node, 2, bias.astype(np.float32), "bias")
    return list(map(Runner(copy).run, feeds))


def test_what_is_chosen_is_found_by_types() -> None:
    model = parse(SORTED, **SORTED_CONSTANTS)
    assert choices_of(model) == {"v": ["i"]}
    behind = ["v", "i", "i3", "e", "ix", "rows", "z", "a", "ar", "p", "y"]
    assert behind_choices(model) == set(behind)
    counted = "g (float[N,4] x) => (int64[2,K] y, int64[2] s) { b = Greater(x, one) y = NonZero(b) s = Shape(x) }"
    assert choices_of(parse(counted, one=np.ones(1, np.float32))) == {"b": ["b"]}


def test_as_many_rows_as_the_float_model_chooses(tmp_path: Path) -> None:
    """The quantized network would choose another number of them."""
    graph = """g (float[N,50,16] x) => (float[K,8] y) {
        h = MatMul(x, w1)
        r = Relu(h)
        s = MatMul(r, ws)
        b = Greater(s, zero)
        n = NonZero(b)
        t = Transpose(n)
        at = Slice(t, start, stop, one)
        rows = GatherND(r, at)
        a = Gemm(rows, w2)
        ar = Relu(a)
        y = Gemm(ar, w3)
    }"""
    constants = {"zero": np.zeros(1, np.float32), "start": np.array([0]), "stop": np.array([2]), "one": np.array([1])}
    weights = {name: SORTED_CONSTANTS[name] for name in SORTED_SHAPES}
    model = parse(graph, **weights, **constants)
    feeds: list[Feeds] = [{"x": noise(1, 50, 16, seed=seed)} for seed in range(24)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, Integer(2), quantize=False)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    for name in ("w2", "w3"):  # both are solved again, on as many rows as there are in the float model
        assert not np.array_equal(tuned.weights[name].codes, context.solutions[name, Integer(2)].codes)


def test_layers_of_other_positions_are_not_paired() -> None:
    layer = next(layer for layer in find_layers(parse(SORTED, **SORTED_CONSTANTS)) if layer.name == "a")
    inputs, outputs = [noise(1, 40, 32)], [noise(1, 40, 32)]
    assert are_paired(layer, inputs, outputs)
    assert not are_paired(layer, inputs, [noise(1, 39, 32)])


def test_columns_of_other_units_are_seen_as_they_are(tmp_path: Path) -> None:
    """Held in 16 bits of the largest of all, most of them would be zero to the layer that is solved again."""
    units = np.logspace(-3, 6, 8, dtype=np.float32)
    graph = "g (float[N, 8] x) => (float[N, 5] y) { h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v) }"
    w = noise(8, 24) / units[:, None]
    model = parse(graph, w=w, b=noise(24, seed=1) - 3 * units @ w, v=noise(24, 5, seed=2))
    feeds: list[Feeds] = [{"x": (noise(1, 8, seed=seed) + 3) * units} for seed in range(64)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, {"w": FLOAT16, "v": Integer(4)}, quantize=False)
    tuned = Reconstruct().apply(AnalyzedPlan(context, plan)).output
    unseen: list[Feeds] = [{"x": (noise(64, 8, seed=1000) + 3) * units}]
    assert error(model, plan, tuned, unseen) < 0.02
