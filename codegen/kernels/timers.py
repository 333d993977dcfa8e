"""A job in which one process tells the times of the libraries of several lowered graphs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ptqc.codegen.kernels.checks import check_model, settle
from ptqc.codegen.kernels.job_files import JOB, REPORT, VALUES
from ptqc.codegen.kernels.jobs import JobChoices, program_job, run_job
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching, batched
from ptqc.codegen.program.timing import TimedProgram
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.utils.scratch import scratch
from ptqc.utils.store import write_npz


def timed(
    graphs: Sequence[tuple[Lowered, Exported]],
    samples: Sequence[Feeds],
    choices: Callable[[Batching], JobChoices],
    target: str,
    worker: str,
    seconds: float = 0.0,
    *,
    may_vary: bool = False,
    unrolls: bool = False,
) -> list[TimedProgram]:
    """Times of the library of each graph, on the first sample.

    choices: of libraries that take samples in one way. worker: the program that does the job; it finds a folder for
    each graph, the sample, and `seconds`. may_vary: whether lengths may vary, as in the library that is delivered.
    unrolls: see `check_model`.
    Raises NoKernel and TargetError as building the libraries does.
    """
    ready = [replace(lowered, model=check_model(lowered.model, target, unrolls=unrolls)) for lowered, _ in graphs]

    def found(batching: Batching, taken: Sequence[Feeds]) -> list[TimedProgram]:
        with scratch() as temporary:
            job = Path(temporary)
            folders = [job / str(place) for place in range(len(ready))]
            for folder, lowered in zip(folders, ready, strict=True):
                folder.mkdir()
                graph = settle(lowered, taken, batching, target, unrolls=unrolls)
                (folder / JOB).write_text(json.dumps(program_job(folder, graph, taken, choices(batching))))
            write_npz(job / VALUES.format(0), taken[0])
            (job / JOB).write_text(json.dumps({"programs": [folder.name for folder in folders], "seconds": seconds}))
            run_job(job, worker, target)
            report = json.loads((job / REPORT).read_text())
        return [TimedProgram.from_json(entry) for entry in report["programs"]]

    _, exported = graphs[0]
    return batched(ready[0].model, exported, samples, found, may_vary=may_vary)
