"""Jobs of the processes that run TVM (`process.py`): written here, done by the functions of each target."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ptqc.codegen.kernels.checks import check_model, specialize
from ptqc.codegen.kernels.process import JOB, LOWERED, VALUES, Work
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.onnxruntime.verify import values
from ptqc.codegen.program.batching import Batching, Seen, batched
from ptqc.codegen.program.inputs import edge_runs, extents, fixed_inputs, other_runs
from ptqc.codegen.program.timing import TimedProgram
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.ir.external import whole_message
from ptqc.ir.lowered import Lowered
from ptqc.ir.operators.base import codes_of
from ptqc.utils.scratch import scratch
from ptqc.utils.store import write_npz


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
    taps = compared_values(lowered, exported)
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
    fixed = fixed_inputs(model, samples)
    return Seen.varied(model, samples, fixed) if batching.varies else Seen.of(model, samples[0], fixed)


def compared_values(lowered: Lowered, exported: Exported) -> dict[str, str]:
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


# A job in which one process tells the times of the libraries of several lowered graphs.


def timed(
    graphs: Sequence[tuple[Lowered, Exported]],
    samples: Sequence[Feeds],
    choices: Callable[[Batching], JobChoices],
    target: str,
    work: Work,
    seconds: float = 0.0,
    *,
    may_vary: bool = False,
    unrolls: bool = False,
) -> list[TimedProgram]:
    """Times of the library of each graph, on the first sample.

    choices: of libraries that take samples in one way. work: finds a folder for each graph, the
    sample, and `seconds`. may_vary: whether lengths may vary, as in the library that is delivered.
    unrolls: see `check_model`.
    Raises NoKernel and TargetError as building the libraries does.
    """
    ready = [replace(lowered, model=check_model(lowered.model, target, unrolls=unrolls)) for lowered, _ in graphs]

    def time_batched(batching: Batching, taken: Sequence[Feeds]) -> list[TimedProgram]:
        with scratch() as temporary:
            job = Path(temporary)
            folders = [job / str(place) for place in range(len(ready))]
            for folder, lowered in zip(folders, ready, strict=True):
                folder.mkdir()
                graph = specialize(lowered, taken, batching, target, unrolls=unrolls)
                (folder / JOB).write_text(json.dumps(program_job(folder, graph, taken, choices(batching))))
            write_npz(job / VALUES.format(0), taken[0])
            (job / JOB).write_text(json.dumps({"programs": [folder.name for folder in folders], "seconds": seconds}))
            report = work.run(job, target)
        return [TimedProgram.from_json(entry) for entry in report["programs"]]

    _, exported = graphs[0]
    return batched(ready[0].model, exported, samples, time_batched, may_vary=may_vary)
