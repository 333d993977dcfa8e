"""Jobs of the processes that run TVM: written here, done by the workers of each target."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc import errors
from ptqc.codegen.kernels.job_files import ERROR, JOB, LOWERED, PROCESS, REPORT, VALUES
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.verify import values
from ptqc.codegen.program.batching import Batching, Seen
from ptqc.codegen.program.inputs import edge_runs, extents, fixed_inputs, other_runs
from ptqc.errors import InternalError, TargetError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.external import whole_message
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators.base import codes_of
from ptqc.utils import sandbox
from ptqc.utils.store import write_npz

TIME_LIMIT = 1800.0


@dataclass(frozen=True)
class JobChoices:
    """How a library takes samples; targets add what else there is to choose."""

    batching: Batching

    def to_json(self) -> dict[str, Any]:
        """What a target adds, for the job."""
        return {}


def write_job(
    folder: Path, lowered: Lowered, exported: Exported, samples: Sequence[Feeds], choices: JobChoices
) -> None:
    """Write what the process that builds and verifies a library needs."""
    fixed = fixed_inputs(lowered.model, samples)
    taps = _compared(lowered, exported)
    runner, seen = Runner(exported.proto, list(taps.values())), extents(samples, fixed)
    inputs = ((f"sample {index}", feeds, runner.run(feeds)) for index, feeds in enumerate(samples))
    job = program_job(folder, lowered, samples, choices)
    alternatives = Seen.from_json(job["values"]).other_shapes(samples[0])
    runs = chain(inputs, edge_runs(runner, seen), other_runs(runner, samples[0], alternatives))
    names = list[str]()
    for index, (name, feeds, result) in enumerate(runs):
        names.append(name)
        write_npz(folder / VALUES.format(index), {**feeds, **{name: result[short] for name, short in taps.items()}})
    remaining = {
        "names": taps,
        "mark": lowered.mark,
        "by_run": choices.batching.batch is None,
        "seen": {name: asdict(extent) for name, extent in seen.items()},
        **({"other_shapes": alternatives} if alternatives else {}),
    }
    (folder / JOB).write_text(json.dumps({**job, "kept": remaining, "runs": names}))


def program_job(folder: Path, lowered: Lowered, samples: Sequence[Feeds], choices: JobChoices) -> dict[str, Any]:
    """Write a lowered graph; what else the process that runs TVM needs to make kernels of it."""
    onnx.save(whole_message(lowered.model), folder / LOWERED)
    return {
        **choices.to_json(),
        "batching": asdict(choices.batching),
        "mark": lowered.mark,
        "formats": {name: str(form) for name, form in lowered.formats.items()},
        "layer_constants": dict(lowered.layer_constants),
        "values": _seen(lowered.model, samples, choices.batching).to_json(),
    }


def _seen(model: ir.Model, samples: Sequence[Feeds], batching: Batching) -> Seen:
    """Sizes and types of all values, as they vary or of the first sample."""
    fixed = fixed_inputs(model, samples)
    return Seen.varied(model, samples, fixed) if batching.varies else Seen.of(model, samples[0], fixed)


def _compared(lowered: Lowered, exported: Exported) -> dict[str, str]:
    """Outputs, codes, and what float operators make, with their names in the file.

    What lies inside an integer kernel is left out: as an output of ONNX Runtime it would keep the kernel from being.
    """
    apart = values(exported.proto)
    results = [str(value.name) for value in lowered.model.graph.outputs]
    for node in lowered.model.graph:
        reads_codes = any(codes_of(value) for value in node.inputs)
        for value in node.outputs:
            name = str(value.name)
            is_made = value.dtype not in (None, ir.DataType.BFLOAT16) and node.op_type != "DequantizeLinear"
            is_apart = not reads_codes or exported.renamed.get(name) in apart
            if value.dtype == ir.DataType.UINT8 or (is_made and is_apart):
                results.append(name)
    return {name: exported.renamed[name] for name in results if name in exported.renamed}


def run_job(folder: Path, worker: str, target: str) -> None:
    """Let the process that runs TVM do a job. Raises what it raised, and TargetError where it did not end well."""
    if problem := attempt(folder, worker):
        raise TargetError(f"TVM {problem}; leave the {target} target out")


def attempt(folder: Path, worker: str) -> str | None:
    """Let a process do a job; why it did not end well, if it did not. Raises what it raised on purpose."""
    problem = sandbox.run(PROCESS, [worker, str(folder)], TIME_LIMIT).problem
    if (folder / ERROR).is_file():
        message = json.loads((folder / ERROR).read_text())
        raise getattr(errors, message["kind"], InternalError)(message["message"])
    if problem is None and not (folder / REPORT).is_file():
        problem = "left no report"
    return problem
