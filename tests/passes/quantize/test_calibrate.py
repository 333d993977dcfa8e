"""What calibration data may do to a compile; ranges and moments are tested where they are made."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.ranges import RangeObserver
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError
from ptqc.execution.onnxruntime import Runner
from ptqc.notes import Note
from ptqc.passes.quantize import calibrate
from ptqc.passes.quantize.calibrate import Calibrate, _Work
from ptqc.passes.quantize.phases import AnalysisInput, CalibrationStats
from ptqc.utils.deadline import NEVER, Deadline

MAGNITUDES = TABLES.replace("Gather(embedding, i)", "Gather(embedding, a)").replace("e =", "a = Abs(i) e =", 1)


@pytest.fixture
def context(tmp_path: Path) -> AnalysisInput:
    """Of a model with a table of 50 rows that is indexed by magnitudes, and a sample that asks for another one."""
    model = parse(MAGNITUDES, **TABLE_CONSTANTS)
    feeds = [{"i": np.full((1, 10), index)} for index in (0, -1, 2, 50, 3)]
    samples: Samples = replace(collect(feeds, input_specs(model), tmp_path, 9), batchable=True)
    return AnalysisInput.of(model, samples[1:], samples[:1])


def test_a_sample_that_the_model_refuses_is_told_by_its_number(context: AnalysisInput) -> None:
    with pytest.raises(
        CalibrationError, match=r"samples\[3\]: the model does not run on 'i' of shape \(1, 10\): .*idx=50"
    ):
        Calibrate().apply(replace(context, model=parse(MAGNITUDES, **TABLE_CONSTANTS)))


def test_a_lack_of_memory_is_none_of_the_samples_faults(
    context: AnalysisInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Runner.run

    def run(runner: Runner, feeds: dict[str, np.ndarray], outputs: list[str] | None = None) -> dict[str, np.ndarray]:
        if len(feeds["i"]) > 1:
            raise RuntimeError("std::bad_alloc")
        return right(runner, feeds, outputs)

    monkeypatch.setattr(Runner, "run", run)
    with pytest.raises(MemoryError):
        Calibrate().apply(replace(context, model=parse(MAGNITUDES, **TABLE_CONSTANTS)))


LENGTHS = (2, 18, 4, 2, 10, 4, 18, 6)
PRODUCT = "g (float[N,L,8] x) => (float[N,L,6] y) { r = Relu(x) y = MatMul(r, w) }"


def of_lengths(folder: Path, model: ir.Model) -> AnalysisInput:
    """Samples of many lengths, of which the longer ones have larger values."""
    feeds = [{"x": noise(1, length, 8, seed=i) * length} for i, length in enumerate(LENGTHS)]
    samples: Samples = replace(collect(feeds, input_specs(model), folder, 9), batchable=True)
    return AnalysisInput.of(model, samples, samples[:2])


def test_every_position_counts_the_same(tmp_path: Path) -> None:
    model = parse(PRODUCT, w=noise(8, 6))
    context = of_lengths(tmp_path, model)
    context = Calibrate("minmax").apply(context).output
    rows = np.concatenate([np.maximum(feeds["x"][0], 0) for feeds in context.tuning])
    result = context.moments["w"]
    assert result.count == sum(LENGTHS)
    np.testing.assert_allclose(result.mean[0], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(result.second()[0], np.cov(rows.T, bias=True), rtol=1e-3, atol=1e-3)


def test_of_long_samples_more_positions_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(PRODUCT, w=noise(8, 6))
    context = of_lengths(tmp_path, model)
    monkeypatch.setattr(calibrate, "positions_per_sample", lambda *_: 4)
    context = Calibrate("minmax").apply(context).output
    usual = sum(LENGTHS + LENGTHS[:2]) // (len(LENGTHS) + 2)
    assert context.moments["w"].count == sum(-(-4 * length // usual) for length in LENGTHS)


def test_the_largest_sample_says_how_much_a_sample_takes(tmp_path: Path) -> None:
    model = parse(PRODUCT, w=noise(8, 6))
    context = of_lengths(tmp_path, model)
    context = Calibrate("minmax").apply(context).output
    assert context.macs["y"] == 18 * 6 * 8
    assert _Work.of(context).sample_bytes == 2 * 18 * 8 * 4  # of x and r


def test_a_histogram_takes_values_by_the_size_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(PRODUCT, w=noise(8, 6))
    context = of_lengths(tmp_path, model)
    asked, update = set(), RangeObserver.update

    def shown(observer: RangeObserver, x: np.ndarray, most: int) -> None:
        asked.add((x.size // 8, most))
        update(observer, x, most)

    monkeypatch.setattr(calibrate, "OBSERVED", 8 * (sum(LENGTHS) + sum(LENGTHS[:2])) // 2)
    monkeypatch.setattr(RangeObserver, "update", shown)
    context = Calibrate("minmax").apply(context).output
    joined = {length * LENGTHS.count(length) for length in LENGTHS} | set(LENGTHS[:2])
    assert asked >= {(positions, positions * 8 // 2) for positions in joined}


def calibrated(folder: Path, deadline: Deadline = NEVER) -> tuple[CalibrationStats, list[Note]]:
    model = parse(RESIDUAL, **CONSTANTS)
    feeds = [{"x": noise(1, 3, 8, 8, seed=seed)} for seed in range(24)]
    samples = collect(feeds, input_specs(model), folder, 99)  # one by one
    context = AnalysisInput.of(model, samples[:18], samples[18:], deadline=deadline)
    result = Calibrate().apply(context)
    return result.output, list(result.notes)


def test_without_time_one_batch_of_each_split_does(tmp_path: Path) -> None:
    whole, notes = calibrated(tmp_path / "whole")
    assert notes == []
    assert not whole.is_thinned
    late, text = calibrated(tmp_path / "late", Deadline(0.0))
    assert [note.step for note in text] == ["time-limit"] * 2
    assert not any(late.other_ranges.values())
    assert late.is_thinned
    assert late.ranges.keys() == whole.ranges.keys()
    for split, held in ((late.moments, whole.moments), (late.held_moments, whole.held_moments)):
        assert split.keys() == held.keys()
        assert all(0 < split[name].count < held[name].count for name in split)


ATTENTION = """g (float[N,L,8] x) => (float[N,L,L] y) {
    r = Relu(x) q = MatMul(r, a) k = MatMul(r, b) v = MatMul(x, c) t = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, t) u = Transpose<perm = [0, 2, 1]>(v) w = MatMul(v, u) y = Add(s, w)
}"""


def test_weights_that_are_multiplied_with_the_same_share_their_moments(
    tmp_path: Path,
) -> None:
    model = parse(ATTENTION, a=noise(8, 6), b=noise(8, 6, seed=1), c=noise(8, 6, seed=2))
    feeds = [{"x": noise(1, 9, 8, seed=i)} for i in range(24)]
    samples: Samples = replace(collect(feeds, input_specs(model), tmp_path, 24), batchable=True)
    value = Calibrate().apply(AnalysisInput.of(model, samples[:16], samples[16:])).output
    for moments in (value.moments, value.held_moments):
        assert moments["a"] is moments["b"]
        assert moments["a"] is not moments["c"]
    rows = np.maximum(np.concatenate([feed["x"][0] for feed in feeds[:16]]), 0)
    assert value.moments["a"].count == len(rows)
    np.testing.assert_allclose(value.moments["b"].second(centred=False)[0], rows.T @ rows / len(rows), atol=1e-4)
    squares = weakref.ref(value.moments["a"])
    value.release(["a"])
    assert value.moments["b"].gram.size
    value.release(["b"])
    assert squares() is None
    np.testing.assert_array_equal(value.moments["a"].mean, value.moments["b"].mean)
