"""Estimates from gradients against losses that are measured, exact diagonals, and networks that lack gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from measuring import measured

from ptqc.execution.onnxruntime import Feeds
from ptqc.formats import Integer
from ptqc.notes import OUT_OF_TIME, Level
from ptqc.passes.quantize import measure_curvature
from ptqc.passes.quantize.measure_curvature import MeasureCurvature
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity, mean_shift
from ptqc.passes.quantize.phases import Sensitivities
from ptqc.utils.deadline import Deadline

pytest.importorskip("torch", reason="torch is not installed: pip install 'ptqc[torch]'")

import torch

from ptqc.execution.torch.graph import TorchGraph
from ptqc.execution.torch.operators import OPERATORS

CLASSIFIER = """g (float[N, 3, 6, 6] x) => (float[N, 5] logits) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, first, bias)
    r = Relu(a)
    b = Conv(r, second, other)
    t = Tanh(b)
    f = Flatten(t)
    logits = Gemm <transB = 1> (f, head, offset)
}"""
WEIGHTS = {
    "first": noise(12, 3, 3, 3, scale=0.4),
    "bias": noise(12),
    "second": noise(8, 12, 2, 2, scale=0.3),
    "other": noise(8),
    "head": noise(5, 32, scale=0.6),
    "offset": noise(5),
}


def classifier() -> ir.Model:
    return parse(CLASSIFIER, **WEIGHTS)


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Sensitivities:
    feeds: list[Feeds] = [{"x": noise(1, 3, 6, 6, seed=seed)} for seed in range(24)]
    return measured(classifier(), feeds, tmp_path_factory.mktemp("samples"), (2, 4, 7))


def test_weights_lose_what_their_channels_do(classified: Sensitivities, monkeypatch: pytest.MonkeyPatch) -> None:
    """½ uᵀ H u with u = J δ of one channel at a time: J by differentiation, H of the divergence, δ by running."""
    monkeypatch.setattr(measure_curvature, "SWEEPS", 60)
    result, graph = MeasureCurvature().apply(classified).output, TorchGraph(classified.model)
    for layer in classified.layers:
        for form in (Integer(2), Integer(4)):
            rounded = classified.solutions[layer.weight, form].weight
            shift = torch.from_numpy(layer.over_output(mean_shift(classified, layer, rounded)))
            replaced = {layer.weight: torch.from_numpy(rounded)}
            expected = 0.0
            for feeds in classified.held_back.batches(1):
                value = {"x": torch.from_numpy(feeds["x"])}
                values = graph.run(value, [layer.name, "logits"])
                y, p = values[layer.name], torch.softmax(values["logits"][0], 0)
                error = graph.run(value, [layer.name], replace=replaced)[layer.name] - y + shift
                jacobian = torch.autograd.functional.jacobian(
                    lambda y, name=layer.name: graph.run({name: y}, ["logits"])["logits"][0], y
                )
                moved = (jacobian.flatten(1) * error.flatten()).reshape(len(p), layer.channels, -1).sum(2)
                expected += 0.5 * float((p @ moved**2 - (p @ moved) ** 2).sum()) / len(classified.held_back)
            assert result.weight_losses[layer.weight, form] == pytest.approx(expected, rel=0.15)


def test_the_last_layer_loses_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squared errors have one curvature everywhere, and nothing comes behind the layer."""
    model = parse("g (float[N, 2, 24] x) => (float[N, 2, 6] y) { h = Relu(x) y = MatMul(h, w) }", w=noise(24, 6))
    value = measured(model, [{"x": noise(1, 2, 24, seed=seed)} for seed in range(24)], tmp_path, (2, 4))
    value = MeasureSensitivity("mse").apply(value).output
    monkeypatch.setattr(measure_curvature, "SWEEPS", 40)
    result = MeasureCurvature("mse").apply(value)
    assert result.output.loss_unit == value.loss_unit
    assert result.output.kinds == value.kinds
    for form in (Integer(2), Integer(4)):
        assert result.output.weight_losses["w", form] == pytest.approx(value.weight_losses["w", form], rel=0.15)
    (note,) = result.notes
    assert note.message == f"losses are second-order estimates from {8 * 40} gradients"


def test_activations_lose_about_what_is_measured(classified: Sensitivities, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_curvature, "SWEEPS", 40)
    result = MeasureCurvature().apply(classified).output
    assert result.site_losses.keys() == classified.site_losses.keys()
    for name, loss in classified.site_losses.items():
        assert result.site_losses[name] == pytest.approx(loss, rel=0.35)


def test_a_site_that_matters_takes_the_range_that_loses_least(classified: Sensitivities) -> None:
    right = dict(classified.ranges)
    wide = {name: replace(params, scale=params.scale * 64) for name, params in right.items()}
    others = {name: (params,) for name, params in right.items()}
    value = replace(classified, ranges=wide, other_ranges=others)
    assert MeasureCurvature().apply(value).output.ranges == right
    assert MeasureCurvature(limit=1e6).apply(value).output.ranges == wide


def test_rows_of_a_table(tmp_path: Path) -> None:
    model = parse("g (int64[N, 4] ids) => (float[N, 4, 16] y) { y = Gather(table, ids) }", table=noise(64, 16))
    random = np.random.default_rng(0)
    value = measured(model, [{"ids": random.permutation(64)[None, :4]} for _ in range(24)], tmp_path, (2, 4))
    result = MeasureCurvature().apply(value).output
    for form in (Integer(2), Integer(4)):
        loss = value.weight_losses["table", form]
        assert result.weight_losses["table", form] == pytest.approx(loss, rel=1e-3)


def test_what_torch_cannot_run_is_measured_at_the_outputs(
    classified: Sensitivities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(OPERATORS, "Tanh")
    result = MeasureCurvature().apply(classified)
    assert result.output.weight_losses == classified.weight_losses
    (note,) = [note for note in result.notes if note.step == MeasureCurvature.name]
    assert note.level == Level.WARNING
    assert note.message.startswith("losses were measured at the outputs instead: the Tanh that gives 't' is not known")


def test_gradients_that_are_no_numbers_do_not_count(tmp_path: Path) -> None:
    text = "g (float[N, 16] x) => (float[N, 4] y) { h = MatMul(x, w) r = Relu(h) q = Sqrt(r) y = MatMul(q, v) }"
    model = parse(text, w=noise(16, 16), v=noise(16, 4))
    value = measured(model, [{"x": noise(1, 16, seed=seed)} for seed in range(24)], tmp_path, (2, 4))
    result = MeasureCurvature().apply(value)
    assert result.output.weight_losses == value.weight_losses
    assert any("gradients are not finite" in note.message for note in result.notes)


def test_weights_that_no_gradient_reaches_lose_what_is_usual(tmp_path: Path) -> None:
    text = "g (float[N, 16] x) => (float[N, 6] y) { h = MatMul(x, w) r = Round(h) y = MatMul(r, v) }"
    model = parse(text, w=noise(16, 16), v=noise(16, 6))
    value = measured(model, [{"x": noise(1, 16, seed=seed)} for seed in range(24)], tmp_path, (2, 4))
    result = MeasureCurvature().apply(value)
    losses, errors = result.output.weight_losses, value.errors
    usual = np.median([losses["v", Integer(bits)] / errors["v", Integer(bits)] for bits in (2, 4)])
    for bits in (2, 4):
        assert losses["w", Integer(bits)] == pytest.approx(usual * errors["w", Integer(bits)], rel=1e-6)
    (note,) = [note for note in result.notes if note.level == Level.WARNING]
    assert note.subject == "w"
    assert note.message.startswith("no gradient reaches 1 of 2 weights and 1 of 2 activations")


def test_without_time_one_sample_says_it_all(classified: Sensitivities) -> None:
    result = MeasureCurvature().apply(replace(classified, deadline=Deadline(0.0)))
    assert any(note.step == OUT_OF_TIME and "the gradients of 1 of 8 samples" in note.message for note in result.notes)
    assert result.output.weight_losses.keys() == classified.weight_losses.keys()
