"""How fast the delivered file is beside the float model, for one sample."""

from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.execution.onnxruntime import Feeds, is_lean
from ptqc.execution.profile import Subject
from ptqc.execution.speed import Speed, compare
from ptqc.utils.deadline import NEVER, Deadline
from ptqc.utils.progress import Progress

# Why speeds are not compared.
NO_TIME = "there was no time left"
NO_MEMORY = "both models, with their weights unpacked to float, may not fit into memory"


@dataclass(frozen=True)
class Measured:
    """speed: None where it was not measured; missing: why. rows: samples in a run.

    They are more than one where the model takes no single one.
    """

    speed: Speed | None
    rows: int
    missing: str = NO_TIME

    def to_json(self) -> dict[str, Any]:
        """The document for `run.json`."""
        speed = self.speed
        if speed is None:
            return {"speed": None, "speed_missing": self.missing}
        return {
            "float_ms": speed.float_ms,
            "compiled_ms": speed.compiled_ms,
            "speed": {
                "times_as_fast": speed.ratio,
                "low": speed.low,
                "high": speed.high,
                "rounds": speed.rounds,
                "rows": self.rows,
            },
        }


def measure_speed(
    model: ir.Model, file: onnx.ModelProto, samples: Samples, progress: Progress, deadline: Deadline = NEVER
) -> Measured:
    """Run the packed file and the float model in turns on one sample."""
    if is_lean(file, model):  # both in memory at the same time, each with all of its weights in float
        return Measured(None, 1, NO_MEMORY)
    with progress.stage("compare speeds"):
        feeds, rows = one_sample(model, samples)
        return Measured(compare(Subject(model, feeds), Subject(file, feeds), deadline), rows)


def one_sample(model: ir.Model, samples: Samples) -> tuple[Feeds, int]:
    """Feeds of a single sample, and how many the model takes it for: what a reader gives may be a batch."""
    given = samples[0]
    rows = {len(array) if array.ndim else 0 for array in given.values()}
    if len(rows) != 1 or max(rows) < 2:
        return given, 1
    if samples.batchable:
        return {name: array[:1] for name, array in given.items()}, 1
    firsts = {value.shape[0] if value.shape else None for value in (*model.graph.inputs, *model.graph.outputs)}
    return given, max(rows) if firsts == rows else 1
