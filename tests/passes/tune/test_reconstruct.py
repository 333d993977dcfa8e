import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES, array

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import NotFinite
from ptqc.execute.onnxruntime import Feeds, Runner
from ptqc.execute.walk import Slicer, Walk
from ptqc.formats import FLOAT16, Codebook, Format, Integer, Palette, Scaled
from ptqc.graph.layers import Layer
from ptqc.passes.decide.calibrate import Calibrate
from ptqc.passes.decide.phases import Decided, Planned, Setting
from ptqc.passes.decide.solve_weights import SolveWeights
from ptqc.passes.tune.quantized_walk import run_quantized
from ptqc.passes.tune.reconstruct import (
    DAMPING,
    GENEROUS_STRENGTHS,
    STRENGTHS,
    Reconstruct,
    _float_outputs,
    _Problem,
    _State,
    reconstruct_all,
)
from ptqc.plan import Plan
from ptqc.solutions import Solution, TunedNumbers
from ptqc.solvers.gptq import Factored, RoundingTarget, grids_for, round_all
from ptqc.work.deadline import NEVER, Deadline


def measured(model: ir.Model, folder: Path, feeds: list[Feeds], held: int = 8) -> Decided:
    """Ranges, moments and candidates from the feeds; the last ones are held back."""
    samples: Samples = replace(collect(feeds, input_specs(model), folder, 10_000), batchable=True)
    observed = Calibrate().apply(Setting.of(model, samples[:-held], samples[-held:])).made
    return Decided.after(SolveWeights((2, 3, 4, 8)).apply(observed).made)


def plan_of(context: Decided, form: Format | dict[str, Format], quantize: bool = True) -> Plan:
    formats = {w.name: form if isinstance(form, Format) else form[w.name] for w in context.weights}
    roles = (tuple(context.layers), tuple(context.weights), tuple(context.kernels), tuple(context.sites))
    return Plan(*roles, dict(context.ranges) if quantize else {}, formats)


def table(context: Decided, plan: Plan, model: ir.Model) -> TunedNumbers:
    """The numbers that a plan has before reconstruction."""
    weights = {name: context.solutions[name, form] for name, form in plan.formats.items()}
    biases = {layer.name: array(model, layer.bias) if layer.bias else None for layer in plan.layers}
    return TunedNumbers(weights, biases)


def outputs(model: ir.Model, plan: Plan, tuned: TunedNumbers, feeds: list[Feeds]) -> list[dict[str, np.ndarray]]:
    """Of the float graph with rounded activations, these weights, and these biases as additions behind the layers."""
    copy = model.clone()
    for node in list(copy.graph):
        bias = tuned.biases.get(str(node.outputs[0].name))
        if bias is None:
            continue
        name = f"{node.outputs[0].name}/new bias"
        value = ir.Value(name=name, const_value=ir.tensor(bias.astype(np.float32), name=name))
        copy.graph.register_initializer(value)
        node.resize_inputs(3)
        node.replace_input_with(2, value)
    chosen = [site for site in plan.sites if site.name in plan.activations]
    params = {source: plan.activations[site.name] for site in chosen for source in site.sources}
    return run_quantized(Slicer(copy), feeds, params, {name: s.weight for name, s in tuned.weights.items()})


def error(model: ir.Model, plan: Plan, tuned: TunedNumbers, feeds: list[Feeds]) -> float:
    real = [Runner(model).run(one) for one in feeds]
    found = outputs(model, plan, tuned, feeds)
    power = sum(float(np.square(a["y"]).sum()) for a in real)
    return sum(float(np.square(a["y"] - b["y"]).sum()) for a, b in zip(real, found, strict=True)) / power


@pytest.fixture(scope="module")
def residual() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def context(residual: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Decided:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(40)]
    return measured(residual, tmp_path_factory.mktemp("samples"), feeds)


UNSEEN: list[Feeds] = [{"x": noise(16, 3, 8, 8, seed=1000)}]


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_unseen_outputs_come_closer_to_float(residual: ir.Model, context: Decided, bits: int, quantize: bool) -> None:
    plan = plan_of(context, Integer(bits), quantize)
    tuned = Reconstruct().apply(Planned(context, plan)).made
    before, after = (error(residual, plan, t, UNSEEN) for t in (table(context, plan, residual), tuned))
    assert after < (0.7 if bits < 8 else 1.5) * before
    assert bits > 2 or tuned.biases["e"] is not None  # a layer that had none
    for name, solution in tuned.weights.items():
        assert solution.form == Integer(bits)
        assert solution.codes.shape == array(residual, name).shape


def test_the_same_numbers_every_time(context: Decided) -> None:
    plan = plan_of(context, Integer(3))
    first, second = (Reconstruct().apply(Planned(context, plan)).made for _ in range(2))
    for name, solution in first.weights.items():
        np.testing.assert_array_equal(solution.codes, second.weights[name].codes)
        np.testing.assert_array_equal(solution.scale, second.weights[name].scale)
    for name, bias in first.biases.items():
        np.testing.assert_array_equal(bias, second.biases[name])


def test_the_mean_of_every_channel_is_kept(residual: ir.Model, context: Decided) -> None:
    """On what was tuned on, with all columns looked at, unless the bias was better left alone."""
    plan = plan_of(context, Integer(2))
    tuned = Reconstruct().apply(Planned(context, plan)).made
    feeds = list(context.tuning.batches(40))
    real = Runner(residual, ["c", "d"]).run(feeds[0])
    copy = parse(RESIDUAL.replace("(float[N, 5] y)", "(float[N, 5] y, float[N, 4, 8, 8] c)"), **CONSTANTS)
    found = outputs(copy, plan, tuned, feeds)[0]["c"]
    axes = (0, 2, 3)
    drift = np.abs(found.mean(axes) - real["c"].mean(axes)) / real["c"].std(axes)
    assert drift.max() < 0.02


def test_formats_that_are_exact_keep_the_weights(residual: ir.Model, context: Decided) -> None:
    plan = plan_of(context, FLOAT16)
    tuned = Reconstruct().apply(Planned(context, plan)).made
    for name, solution in tuned.weights.items():
        np.testing.assert_array_equal(solution.codes, array(residual, name).astype(np.float16))


def test_shared_weights_are_settled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = """g (float[N, 6, 8, 8] x) => (float[N, 6, 8, 8] y) {
        c = Conv(x, w) r = Relu(c) d = Conv(r, w, b) y = Conv(d, w)
    }"""
    model = parse(graph, w=noise(6, 6, 1, 1), b=noise(6, seed=1))
    feeds: list[Feeds] = [{"x": noise(1, 6, 8, 8, seed=seed)} for seed in range(24)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, Integer(4))
    tuned = Reconstruct().apply(Planned(context, plan)).made
    calls = []
    monkeypatch.setattr(_Problem, "rounded", lambda made, *_: calls.append(made.layer.name) or tuned.weights["w"])
    Reconstruct().apply(Planned(context, plan))
    assert set(calls) == {"c"}
    assert list(tuned.weights) == ["w"]
    assert set(tuned.biases) == {"c", "d", "y"}
    assert error(model, plan, tuned, feeds[-8:]) < 0.1


def test_float_outputs_stay_whole_while_the_walk_goes_on(residual: ir.Model, context: Decided) -> None:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(3)]
    layers = {layer.name: layer for layer in context.layers}
    found = list(_float_outputs(Walk(Slicer(residual), feeds), layers, NEVER))
    expected = [Runner(residual, list(layers)).run(one) for one in feeds]
    for name, outputs_of in zip(layers, found, strict=True):
        for batch, one in zip(outputs_of, expected, strict=True):
            np.testing.assert_allclose(batch, one[name], rtol=1e-4, atol=1e-5)


def test_without_time_the_layers_keep_the_table(residual: ir.Model, context: Decided) -> None:
    plan = plan_of(context, Integer(3))
    (found,) = reconstruct_all(Planned(replace(context, deadline=Deadline(0.0)), plan), [0])
    assert found.kept == len(context.layers)
    for weight in context.weights:
        assert found.weights[weight.name] is context.solutions[weight.name, Integer(3)]
    for layer in context.layers:
        own = None if layer.bias is None else array(residual, layer.bias).reshape(-1)
        np.testing.assert_array_equal(found.biases[layer.name], own)


def test_where_time_ends_between_layers_those_before_are_settled(
    context: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, True, *[False] * 10])
    monkeypatch.setattr(Deadline, "leaves", lambda *_: next(answers))
    plan = plan_of(context, Integer(3))
    (found,) = reconstruct_all(Planned(context, plan), [0])
    monkeypatch.undo()
    (whole,) = reconstruct_all(Planned(context, plan), [0])
    settled = len(context.layers) - found.kept
    assert 0 < settled < len(context.layers)
    for number, layer in enumerate(context.layers):
        same = np.array_equal(found.weights[layer.weight].codes, whole.weights[layer.weight].codes)
        assert same or number >= settled


def test_draws_together_are_those_alone(context: Decided) -> None:
    plan = plan_of(context, Integer(3))
    together = reconstruct_all(Planned(context, plan), [0, 1])
    for draw, found in enumerate(together):
        (alone,) = reconstruct_all(Planned(context, plan), [draw])
        for name, solution in alone.weights.items():
            np.testing.assert_array_equal(solution.weight, found.weights[name].weight)
    different = [not np.array_equal(together[0].weights[n].weight, s.weight) for n, s in together[1].weights.items()]
    assert any(different)


@pytest.mark.parametrize("where", [_State, Walk])
def test_an_error_of_one_walk_is_raised_once_all_ended(
    where: type, context: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(where, "solve" if where is _State else "step", fail)
    before = threading.active_count()
    with pytest.raises(KeyError, match="planted"):
        reconstruct_all(Planned(context, plan_of(context, Integer(3))), [0, 1])
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
    tuned = Reconstruct().apply(Planned(context, plan)).made
    for name in ("embedding", "mask"):
        assert tuned.weights[name] is context.solutions[name, forms[name]]
    assert tuned.biases == {"z": None, "y": None}
    assert error(model, plan, tuned, feeds[-8:]) < error(model, plan, table(context, plan, model), feeds[-8:])


def test_layers_are_solved_on_the_inputs_that_they_will_see(
    residual: ir.Model, context: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(context, Integer(3))
    seen: dict[str, _Problem] = {}
    monkeypatch.setattr(_Problem, "target", lambda made, *_: seen.setdefault(made.layer.name, made) and made.weight)
    tuned = Reconstruct().apply(Planned(context, plan)).made
    assert set(seen) == {layer.name for layer in plan.layers}
    copy = residual.clone()
    names = {layer.input for layer in plan.layers} - {"x"}
    copy.graph.outputs.extend(v for node in copy.graph for v in node.outputs if v.name in names)
    feeds = [*context.tuning.batches(8), *context.held_back.batches(8)]
    values = outputs(copy, plan, tuned, feeds)
    for layer in plan.layers:
        columns = seen[layer.name].x
        scale = plan.params[layer.input].scale
        steps = np.concatenate([x.ravel() for x in columns]) / np.float32(scale)
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        reach = max(float(np.abs({**feed, **one}[layer.input]).max()) for one, feed in zip(values, feeds, strict=True))
        assert max(float(np.abs(x).max()) for x in columns) <= reach + scale / 2


def test_least_squares_targets_compete(context: Decided, monkeypatch: pytest.MonkeyPatch) -> None:
    """At two bits the inputs drift so far that some layer does better with other weights than its own."""
    plan = plan_of(context, Integer(2))
    tuned = Reconstruct().apply(Planned(context, plan)).made
    monkeypatch.setattr(_Problem, "target", lambda made, *_: made.weight)
    without = Reconstruct().apply(Planned(context, plan)).made
    assert any(not np.array_equal(s.codes, without.weights[name].codes) for name, s in tuned.weights.items())


# One layer


LAYER = Layer("y", "Conv", "x", "w", "b", "y", (6, 2, 1, 2), 0, 2)


def problem(seed: int, drift: float) -> tuple[_Problem, np.ndarray]:
    """Columns of a layer of two groups whose inputs came out mixed and shifted, and the float model's outputs."""
    weight, bias = noise(6, 2, 1, 2, seed=seed), noise(6, seed=seed + 1)
    real = noise(2, 4, 400, seed=seed + 2)
    mixing = np.eye(4, dtype=np.float32) + drift * noise(2, 4, 4, seed=seed + 3, scale=0.5)
    seen = mixing @ real + np.float32(drift) + noise(2, 4, 400, seed=seed + 4, scale=0.1)
    y = LAYER.matrix(weight) @ real + bias.reshape(2, 3, 1)
    parts = [slice(0, 150), slice(150, 300), slice(300, 400)]
    return _Problem(LAYER, LAYER.matrix(weight), bias, [seen[..., p] for p in parts], [y[..., p] for p in parts], 2), y


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), drift=st.floats(0, 0.5), strength=st.sampled_from([0.25, 1.0]))
def test_the_target_is_on_the_way_to_the_least_squares_weight(seed: int, drift: float, strength: float) -> None:
    made, y = problem(seed, drift)
    x = np.concatenate(made.x[:2], -1).astype(np.float64)
    for group in range(2):
        covariance = np.cov(np.concatenate([x[group], y[group, :, :300]]), bias=True)
        inputs, cross = covariance[:4, :4], covariance[4:, :4]
        damped = made.second[group] + DAMPING * np.trace(made.second[group]) / 4 * np.eye(4)
        given, target = made.weight[group], made.target(Factored.of(made.second, DAMPING), strength)[group]
        whole = (cross - given @ inputs) @ np.linalg.inv(damped)
        np.testing.assert_allclose(target, given + strength * whole, atol=2e-3)
        before, after = (np.var(y[group, :, :300] - matrix @ x[group], axis=-1).sum() for matrix in (given, target))
        assert after <= before * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), strength=st.sampled_from([0.25, 1.0]))
def test_weights_without_correction_aim_at_the_mean_too(seed: int, strength: float) -> None:
    """Least squares without a free intercept: on the way to it the squared error falls, the mean's included."""
    corrected, y = problem(seed, 0.3)
    made = replace(corrected, layer=replace(LAYER, keeps_sign=True))
    x = np.concatenate(made.x[:2], -1).astype(np.float64)
    wanted = y[..., :300] - made.bias.reshape(2, 3, 1)
    for group in range(2):
        inputs, cross = x[group] @ x[group].T / 300, wanted[group] @ x[group].T / 300
        damped = made.second[group] + DAMPING * np.trace(made.second[group]) / 4 * np.eye(4)
        np.testing.assert_allclose(made.second[group], inputs, atol=0.05 * np.trace(inputs))
        given, target = made.weight[group], made.target(Factored.of(made.second, DAMPING), strength)[group]
        whole = (cross - given @ inputs) @ np.linalg.inv(damped)
        np.testing.assert_allclose(target, given + strength * whole, atol=2e-3)
        before, after = (np.square(wanted[group] - matrix @ x[group]).sum() for matrix in (given, target))
        assert after <= before * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), drift=st.floats(0, 0.5), bits=st.sampled_from([2, 4, 8]))
def test_bias_and_held_back_error(seed: int, drift: float, bits: int) -> None:
    made, y = problem(seed, drift)
    solution = made.rounded(Integer(bits), 0.5)
    (corrected, _, bias), (uncorrected, _, given_bias) = made.judged(solution)
    missing = y - LAYER.matrix(solution.weight) @ np.concatenate(made.x, -1)
    left = missing - bias.reshape(2, 3, 1)
    np.testing.assert_allclose(left[..., :300].mean(-1), 0, atol=1e-4)
    assert corrected == pytest.approx(float(np.square(left[..., 300:]).sum()), rel=1e-4)
    np.testing.assert_array_equal(given_bias, made.bias)
    left = missing - made.bias.reshape(2, 3, 1)
    assert uncorrected == pytest.approx(float(np.square(left[..., 300:]).sum()), rel=1e-4)


def test_rounding_the_target_beats_rounding_the_weight() -> None:
    made, _ = problem(0, 0.5)
    form = Integer(8)
    grid = grids_for(made.weight, made.second, [form])[form]
    (of_weight,) = round_all([RoundingTarget.of(made.weight, grid, form, 0)], made.second)
    plain = Solution(form, LAYER.tensor(of_weight.codes), of_weight.scale.reshape(-1), LAYER.channel_axis)
    errors = [made.judged(answer)[0][0] for answer in (plain, made.rounded(form, 1.0))]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize(("bits", "strengths"), [(4, STRENGTHS), (8, GENEROUS_STRENGTHS)])
def test_each_draw_goes_another_part_of_the_way(
    bits: int, strengths: tuple[float, ...], context: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, found = _Problem.rounded, list[float]()

    def rounded(made: _Problem, form: Scaled, strength: float) -> Solution:
        found.append(strength)
        return right(made, form, strength)

    monkeypatch.setattr(_Problem, "rounded", rounded)
    plan = plan_of(context, Integer(bits))
    layers, expected = len(plan.layers), list[float]()
    for draw, strength in enumerate((*strengths, strengths[0])):
        Reconstruct(draw).apply(Planned(context, plan))
        expected += [strength] * layers
    assert found == expected
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
        error(model, plan, Reconstruct().apply(Planned(context, plan)).made, [{"x": np.ones((1, 4), np.float32)}]) < 1
    )


def test_an_infinity_of_the_quantized_model_is_named(tmp_path: Path) -> None:
    model = parse(RECIPROCAL, w=noise(4, 4), v=noise(4, 2))
    context = measured(model, tmp_path, [{"x": noise(1, 4, seed=seed)} for seed in range(40)])
    plan = plan_of(context, Integer(8))
    assert "gate" in plan.params  # a code of 0 stands for all that is small
    with pytest.raises(NotFinite, match=r"Reciprocal 'other' is infinite in \d+ of \d+ places"):
        Reconstruct().apply(Planned(context, plan))


# Filters of powers: narrow ones that have next to nothing in common, and rows of zeros between them.
FILTERS = {
    "MatMul": "g (float[N, 16] x) => (float[N, 6] y) { p = Mul(x, x) h = MatMul(p, w) s = Add(h, tiny) y = Log(s) }",
    "Gemm": "g (float[N, 16] x) => (float[N, 6] y) { p = Mul(x, x) s = Gemm(p, w, tiny) y = Log(s) }",
}


@pytest.mark.parametrize("form", [Integer(3), Integer(8), Codebook(3)], ids=str)
@pytest.mark.parametrize("op", FILTERS)
def test_what_a_logarithm_is_taken_of_stays_positive(op: str, form: Format, tmp_path: Path) -> None:
    w = np.maximum(1 - abs(np.arange(16)[:, None] - np.arange(1, 16, 2.6)) / 2.6, 0).astype(np.float32)
    model = parse(FILTERS[op], w=w, tiny=np.full(6, 1e-6, np.float32))
    mixed = noise(16, 16) * np.geomspace(1, 1e-3, 16, dtype=np.float32)
    feeds = [{"x": noise(1, 16, seed=seed) @ mixed} for seed in range(40)]
    context = measured(model, tmp_path, feeds)
    plan = plan_of(context, form, quantize=False)
    for tuned in (table(context, plan, model), *reconstruct_all(Planned(context, plan), [0, 1])):
        (solution,), (bias,) = tuned.weights.values(), tuned.biases.values()
        assert solution.weight.min() >= 0
        assert bias is None or bias.min() >= 0
