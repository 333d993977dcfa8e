"""The speed of a delivered file: for one sample, whatever a reader gives at a time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import proto, weight

from ptqc.calibration.samples import Samples, collect, input_specs
from ptqc.evaluation.judge import measure_speed, one_sample
from ptqc.execution import speed
from ptqc.ir import external
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import SILENT


def given(tmp_path: Path, axis: str, rows: int) -> tuple[ir.Model, Samples]:
    """A product whose first axis is `axis`, and batches of so many rows."""
    graph = f"g (float[{axis},16] x) => (float[{axis},8] y) {{ y = Gemm(x, w) }}"
    model = ir.from_proto(proto(graph, w=weight(16, 8)))
    feeds = [{"x": np.full((rows, 16), i, np.float32)} for i in range(3)]
    return model, collect(feeds, input_specs(model), tmp_path, 10)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_free_batch_is_cut_to_one_sample(tmp_path: Path, rows: int) -> None:
    model, samples = given(tmp_path, "N", rows)
    feeds, counted = one_sample(model, replace(samples, batchable=True))
    assert (feeds["x"].shape, counted) == ((1, 16), 1)


def test_a_batch_that_the_model_fixes_is_told(tmp_path: Path) -> None:
    model, samples = given(tmp_path, "8", 8)
    feeds, counted = one_sample(model, samples)
    assert (feeds["x"].shape, counted) == ((8, 16), 8)


def test_an_axis_that_need_not_be_a_batch_stays_whole(tmp_path: Path) -> None:
    model, samples = given(tmp_path, "N", 8)
    feeds, counted = one_sample(model, samples)
    assert (feeds["x"].shape, counted) == ((8, 16), 1)


def test_why_a_speed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = given(tmp_path, "N", 8)
    late = measure_speed(model, ir.to_proto(model), samples, SILENT, Deadline(0.0))
    assert late.to_json() == {"latency": None, "latency_missing": "there was no time left"}
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 100)
    large = measure_speed(model, ir.to_proto(model), samples, SILENT)
    assert "may not fit into memory" in large.to_json()["latency_missing"]


def test_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    model, samples = given(tmp_path, "N", 8)
    result = measure_speed(model, ir.to_proto(model), replace(samples, batchable=True), SILENT)
    record = result.to_json()
    assert record["latency"]["float_ms"] > 0
    assert record["latency"]["batch"] == 1
    assert record["latency"]["low"] <= record["latency"]["speedup"] <= record["latency"]["high"]
