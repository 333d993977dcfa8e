"""What a job says of a network, as the process that runs TVM reads it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import onnx_ir as ir

from ptqc.codegen.kernels.process import JOB, LOWERED
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.formats import Format
from ptqc.ir.lowered import Lowered


@dataclass(frozen=True)
class Assignment:
    """A network of a job. job: all that its file says, with what a target added (`JobChoices.to_json`)."""

    lowered: Lowered
    seen: Seen
    batching: Batching
    job: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `ptqc.codegen.kernels.jobs.program_job` wrote."""
        job = json.loads((folder / JOB).read_text())
        formats = {name: Format.parse(form) for name, form in job["formats"].items()}
        lowered = Lowered(ir.load(folder / LOWERED), formats, {}, {}, job["layer_constants"], mark=job["mark"])
        return cls(lowered, Seen.from_json(job["values"]), Batching(**job["batching"]), job)
