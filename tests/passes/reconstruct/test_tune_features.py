from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL
from mostly_slow import mostly_slow
from reconstructing import error, measured, plan_of, table

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import Integer
from ptqc.formats.scales import roots
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.losses import OutputLoss, recognize
from ptqc.losses.classes import Logits
from ptqc.losses.regression import Regression
from ptqc.passes.quantize.phases import Analysis, TunablePlan
from ptqc.utils import parallel
from ptqc.utils.deadline import Deadline

pytest.importorskip("torch", reason="torch is not installed")

import torch

from ptqc.execution.torch.quantized import QuantizedGraph
from ptqc.passes.reconstruct.features import TuneFeatures
from ptqc.passes.reconstruct.gradients import _is_certain, _State, _taps, tune_features

CHOICE = """g (float[N, 4] x) => (float[N] y) {
    a = MatMul(x, w) i = ArgMax <axis = 1, keepdims = 0> (a) y = Cast <to = 1> (i)
}"""
QUICK = TuneFeatures(code_rate=2e-2, scale_rate=5e-3, bias_rate=1e-2)


def judged(model: ir.Model, context: Analysis) -> Analysis:
    """With outputs that are judged by their squared error."""
    references = list(map(Runner(model).run, context.held_back.batches(8)))
    return replace(context, kinds=recognize(model, context.held_back[0], references, "mse"))


@pytest.fixture(scope="module")
def residual() -> ir.Model:
    return parse(RESIDUAL, **CONSTANTS)


@pytest.fixture(scope="module")
def context(residual: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    feeds: list[Feeds] = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(64)]
    return judged(residual, measured(residual, tmp_path_factory.mktemp("samples"), feeds, 24))


@pytest.fixture
def start(residual: ir.Model, context: Analysis) -> tuple[Plan, QuantizedParameters]:
    plan = plan_of(context, Integer(3))
    return plan, table(context, plan, residual)


def held_error(model: ir.Model, context: Analysis, plan: Plan, tuned: QuantizedParameters) -> float:
    return error(model, plan, tuned, list(context.held_back.batches(8)))


@pytest.mark.long
def test_outputs_come_closer_and_formats_stay(
    residual: ir.Model, context: Analysis, start: tuple[Plan, QuantizedParameters]
) -> None:
    plan, before = start
    result = QUICK.apply(TunablePlan(context, plan, before))
    after, notes = result.output, result.notes
    assert [note.subject for note in notes] == [""]
    assert held_error(residual, context, plan, after) < 0.9 * held_error(residual, context, plan, before)
    changed = []
    for name, solution in before.weights.items():
        codes = after.weights[name].codes
        assert codes.dtype == np.int8
        assert set(np.unique(codes)) <= {-7, -5, -3, -1, 1, 3, 5, 7}
        changed.append(np.mean(codes != solution.codes))
        assert after.weights[name].scale.shape == solution.scale.shape
    assert 0 < max(changed) < 0.3


def test_steps_compute_with_scales_as_they_are_stored(
    residual: ir.Model, context: Analysis, start: tuple[Plan, QuantizedParameters]
) -> None:
    plan, before = start
    state = _State.of(QuantizedGraph(residual, plan), context, before)
    for factors in state.factors.values():
        factors.data += 0.01 * torch.arange(len(factors))
    result, stored = state.tensors()[0], state.tuned().weights
    torch.stack([result[name].square().sum() for name in stored]).sum().backward()
    for name, solution in stored.items():
        assert roots(solution.scale) is not None
        np.testing.assert_allclose(result[name].detach().numpy(), solution.weight, rtol=1e-5)
        gradient = state.factors[name].grad
        assert gradient is not None
        assert (gradient != 0).all()


@pytest.mark.slow
def test_a_layer_that_keeps_its_sign_is_left_alone(context: Analysis, start: tuple[Plan, QuantizedParameters]) -> None:
    (*others, kept), (plan, before) = context.layers, start
    layers = (*others, replace(kept, keeps_sign=True))
    after = QUICK.apply(TunablePlan(replace(context, layers=layers), plan, before)).output
    assert any(after.biases[layer.name] is not before.biases[layer.name] for layer in others)
    assert after.weights[kept.weight] is before.weights[kept.weight]
    assert after.biases[kept.name] is before.biases[kept.name]


def test_what_does_not_help_is_not_kept(context: Analysis, start: tuple[Plan, QuantizedParameters]) -> None:
    wild = replace(QUICK, steps=8, code_rate=1.0, scale_rate=3.0, bias_rate=30.0)
    result = wild.apply(TunablePlan(context, *start))
    after, notes = result.output, result.notes
    assert after is start[1]
    assert "no significant gain" in notes[0].message


def test_the_same_numbers_every_time(context: Analysis, start: tuple[Plan, QuantizedParameters]) -> None:
    first, second = (replace(QUICK, steps=8).apply(TunablePlan(context, *start)).output for _ in range(2))
    for name, solution in first.weights.items():
        np.testing.assert_array_equal(solution.codes, second.weights[name].codes)
        np.testing.assert_array_equal(solution.scale, second.weights[name].scale)
    for name, bias in first.biases.items():
        np.testing.assert_array_equal(bias, second.biases[name])


@pytest.mark.slow
def test_samples_that_cannot_be_joined(
    residual: ir.Model, context: Analysis, start: tuple[Plan, QuantizedParameters]
) -> None:
    plan, before = start
    single = replace(context, tuning=replace(context.tuning, batchable=False))
    after = QUICK.apply(TunablePlan(single, plan, before)).output
    assert held_error(residual, context, plan, after) <= held_error(residual, context, plan, before)


def test_the_bytes_do_not_depend_on_the_processors(
    context: Analysis, start: tuple[Plan, QuantizedParameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = []
    for count in (1, 3):
        monkeypatch.setattr(parallel, "processors", lambda count=count: count)
        result.append(replace(QUICK, steps=8).apply(TunablePlan(context, *start)).output)
    for name, solution in result[0].weights.items():
        np.testing.assert_array_equal(solution.weight, result[1].weights[name].weight)


def test_class_scores_are_no_target(tmp_path: Path) -> None:
    model = parse(
        "g (float[N, 4] x) => (float[N, 3] y) { a = MatMul(x, w) h = Relu(a) y = Gemm(h, v, b) }",
        w=noise(4, 8),
        v=noise(8, 3),
        b=noise(3),
    )
    feeds: list[Feeds] = [{"x": noise(1, 4, seed=seed)} for seed in range(64)]
    context = measured(model, tmp_path, feeds, 24)
    plan = plan_of(context, Integer(3))
    assert _taps(model, plan, OutputLoss({"y": Logits(1)})) == ("h",)
    assert _taps(model, plan, OutputLoss({"y": Regression(1)})) == ("h", "y")


@pytest.mark.parametrize("kind", mostly_slow(["logits", "embedding", "scores", "state", "map"], "logits", "embedding"))
def test_outputs_of_every_kind(
    residual: ir.Model, context: Analysis, start: tuple[Plan, QuantizedParameters], kind: str
) -> None:
    kinds = recognize(residual, context.held_back[0], [Runner(residual).run(context.held_back[0])], kind)
    (note,) = replace(QUICK, steps=4).apply(TunablePlan(replace(context, kinds=kinds), *start)).notes
    assert "held-back" in note.message


def test_a_gain_must_be_more_than_chance() -> None:
    assert _is_certain(np.array([1.0, 1.1, 0.9, 1.0]))
    assert not _is_certain(np.array([1.0, -0.9, 0.9, -0.8]))
    assert not _is_certain(np.array([5.0]))
    assert not _is_certain(np.array([np.nan, 1.0]))


def test_nothing_to_learn(tmp_path: Path) -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    feeds: list[Feeds] = [{"x": noise(1, 4, seed=seed)} for seed in range(12)]
    context = judged(model, Analysis.of(model, *(measured(model, tmp_path, feeds, 4).tuning,) * 2))
    empty = QuantizedParameters({}, {})
    assert QUICK.apply(TunablePlan(context, context.roles, empty)).output is empty


def test_outputs_that_no_gradient_reaches(tmp_path: Path) -> None:
    model = parse(CHOICE, w=noise(4, 3))
    feeds: list[Feeds] = [{"x": noise(1, 4, seed=seed)} for seed in range(24)]
    context = judged(model, measured(model, tmp_path, feeds))
    plan = plan_of(context, Integer(3))
    before = table(context, plan, model)
    assert QUICK.apply(TunablePlan(context, plan, before)).output is before


def test_a_deadline_ends_the_steps_at_the_next_look(context: Analysis, start: tuple[Plan, QuantizedParameters]) -> None:
    plan, before = start
    notes = tune_features(QUICK, TunablePlan(replace(context, deadline=Deadline(0.0)), plan, before)).notes
    assert notes[-1].message == "cut short: there was time for 30 of 120 gradient steps"
