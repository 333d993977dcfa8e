from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import samples
from planted import CHANNELS, ROWS, WIDE, planted, token_samples, tokens

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.execution.onnxruntime import Runner
from ptqc.execution.walk import Slicer
from ptqc.ir.nodes import infer_shapes
from ptqc.losses import UNITS, OutputLoss, recognize
from ptqc.notes import is_cut_short
from ptqc.passes.effects import applied
from ptqc.passes.equalize.outliers import rewrites
from ptqc.passes.quantize import choose_splits
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.choose_splits import ChooseSplits
from ptqc.passes.quantize.phases import AnalysisInput
from ptqc.passes.reconstruct.quantized_walk import run_quantized
from ptqc.passes.runner import run_rewrites
from ptqc.utils.deadline import Deadline


def setting(factor: float, folder: Path, rows: int = ROWS) -> AnalysisInput:
    """Of the planted network, in which channels are so many times as wide."""
    model = ir.from_proto(planted(factor, rows=rows))
    infer_shapes(model)
    feeds = [{"x": x[None]} for x in samples(rows, CHANNELS, count=24)]
    result = replace(collect(feeds, input_specs(model), folder, 100), batchable=True)
    return AnalysisInput.of(model, result[:16], result[16:])


def tokens_setting(folder: Path, factor: float, channels: float = 1.0) -> AnalysisInput:
    """Of the network whose tokens, and channels of its input, are so many times as wide."""
    model = ir.from_proto(tokens(channels))
    infer_shapes(model)
    feeds = [{"x": x[None]} for x in token_samples(factor, 24, channels)]
    result = replace(collect(feeds, input_specs(model), folder, 100), batchable=True)
    return AnalysisInput.of(model, result[:16], result[16:])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> AnalysisInput:
    return setting(300, tmp_path_factory.mktemp("wide"))


def losses_of(value: AnalysisInput, *tensors: str) -> list[float]:
    """With each of these tensors in 8 bits, on the ranges that a compile gives them."""
    ranges, batches = Calibrate().apply(value).output.ranges, list(value.held_back.batches(8))
    real = list(map(Runner(value.model).run, batches))
    loss = OutputLoss.of(recognize(value.model, value.held_back[0], real), real)
    several = [run_quantized(Slicer(value.model), batches, {name: ranges[name]}) for name in tensors]
    return [float(np.mean([loss(a, b) for a, b in zip(real, result, strict=True)])) for result in several]


def test_planted_channels_are_split_off_and_8_bits_then_hold_the_others(wide: AnalysisInput) -> None:
    result = applied(ChooseSplits(), wide)
    assert [split.tensor for split in result.output] == ["n1", "n2"]
    assert all(set(WIDE) < set(split.channels) for split in result.output)
    assert all(len(split.channels) == 8 for split in result.output)
    model = wide.model.clone()
    run_rewrites(model, rewrites(result.output), [wide.tuning[0]])
    split = AnalysisInput.of(model, wide.tuning, wide.held_back)
    before, after = losses_of(wide, "n1", "n2"), losses_of(split, "n1_narrow", "n2_narrow")
    assert all(narrow < whole / 100 for narrow, whole in zip(after, before, strict=True))
    costs = [float(note.message.split("8 bits cost ")[1].split("%")[0]) / 100 for note in result.notes]
    assert costs == pytest.approx([loss / UNITS["nat"].tolerance for loss in before], rel=0.3)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_nothing_is_measured_where_no_channel_is_wide(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(choose_splits, "Walk")
    result = applied(ChooseSplits(), setting(factor, tmp_path))
    assert (result.output, result.changed, result.notes) == ((), False, ())


def test_what_loses_little_whole_stays_whole(wide: AnalysisInput) -> None:
    assert applied(ChooseSplits(limit=1e3), wide).output == ()


def test_what_loses_much_without_its_wide_channels_stays_whole(wide: AnalysisInput) -> None:
    assert applied(ChooseSplits(limit=1e-9), wide).output == ()


def test_without_time_nothing_is_split_and_that_is_told(wide: AnalysisInput) -> None:
    result = applied(ChooseSplits(), replace(wide, deadline=Deadline(0.0)))
    assert result.output == ()
    assert is_cut_short(result.notes)


def test_layers_too_small_to_gain_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(choose_splits, "Walk")
    assert applied(ChooseSplits(), setting(300, tmp_path, rows=1)).output == ()


@pytest.mark.long
def test_wide_tokens_get_a_scale_for_each_row(tmp_path: Path) -> None:
    value = tokens_setting(tmp_path, factor=300)
    result = applied(ChooseSplits(), value)
    assert [(x.tensor, x.channels, x.by_row) for x in result.output] == [("x", (), True), ("r1", (), True)]
    assert all("with a scale for each row" in note.message for note in result.notes)
    model = value.model.clone()
    run_rewrites(model, rewrites(result.output), [value.tuning[0]])
    scaled = AnalysisInput.of(model, value.tuning, value.held_back)
    before, after = losses_of(value, "x", "r1"), losses_of(scaled, "x_rows", "r1_rows")
    assert all(by_row < whole / 100 for by_row, whole in zip(after, before, strict=True))
    costs = [float(note.message.split(", and ")[1].split("%")[0]) / 100 for note in result.notes]
    assert costs == pytest.approx([loss / UNITS["nat"].tolerance for loss in after], abs=2e-3)


def test_wide_channels_of_wide_tokens_take_both(tmp_path: Path) -> None:
    result = applied(ChooseSplits(), tokens_setting(tmp_path, factor=300, channels=200))
    (first, *_) = result.output
    assert (first.tensor, first.by_row) == ("x", True)
    assert set(WIDE) <= set(first.channels)
    assert first.rest == "x_narrow_rows"
    assert "without 8 of the 64 channels and with a scale for each row" in result.notes[0].message


def test_tokens_alike_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(choose_splits, "Walk")
    assert applied(ChooseSplits(), tokens_setting(tmp_path, factor=2)).output == ()
