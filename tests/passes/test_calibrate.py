"""What calibration data may do to a compile; ranges and moments are tested where they are made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import parse
from lowering import TABLE_CONSTANTS, TABLES

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.errors import CalibrationError
from ptqc.execute.onnxruntime import Runner
from ptqc.passes.calibrate import Calibrate
from ptqc.passes.context import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Of a model with a table of 50 rows, and a sample that asks for another one."""
    model = parse(TABLES, **TABLE_CONSTANTS)
    feeds = [{"i": np.full((1, 10), index)} for index in (0, 1, 2, 50, 3)]
    samples: Samples = replace(collect(feeds, input_specs(model), tmp_path, 9), batchable=True)
    return Context.of(model, samples[:4], samples[4:])


def test_a_sample_that_the_model_refuses_is_told(context: Context) -> None:
    with pytest.raises(CalibrationError, match=r"does not run on some of the calibration samples: .*idx=50"):
        Calibrate().apply(parse(TABLES, **TABLE_CONSTANTS), context)


def test_a_lack_of_memory_is_none_of_the_samples_faults(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Runner.run

    def run(runner: Runner, feeds: dict[str, np.ndarray], outputs: list[str] | None = None) -> dict[str, np.ndarray]:
        if len(feeds["i"]) > 1:
            raise RuntimeError("std::bad_alloc")
        return right(runner, feeds, outputs)

    monkeypatch.setattr(Runner, "run", run)
    with pytest.raises(MemoryError):
        Calibrate().apply(parse(TABLES, **TABLE_CONSTANTS), context)
