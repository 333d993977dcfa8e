"""Timing native libraries: one child process compiles all of them, opens them and lets them take turns."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ptqc.codegen.cpu.isa import several
from ptqc.codegen.cpu.job_files import TIMING_WORKER
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.options import CpuOptions
from ptqc.codegen.cpu.table import DELIVERED, Request
from ptqc.codegen.kernels.checks import check_model
from ptqc.codegen.kernels.job_files import JOB, REPORT, VALUES
from ptqc.codegen.kernels.jobs import program_job, run_job
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching, batched
from ptqc.codegen.program.timing import TimedProgram
from ptqc.errors import TargetError
from ptqc.execute.onnxruntime import Feeds
from ptqc.lowered import Lowered
from ptqc.native.runtime import PACKAGE
from ptqc.store.npz import write_npz
from ptqc.work.scratch import scratch


@dataclass(frozen=True)
class CpuTimer:
    """Times libraries for one instruction set; see `ptqc.codegen.targets.Timer`."""

    isa: str
    tuning: Request

    @classmethod
    def of(cls, options: CpuOptions) -> "CpuTimer":
        """With the best of the instruction sets that this machine has. Raises TargetError where it has none of them."""
        found = several(options.cpu)
        refusals = [isa.refusal() for isa in found]
        if None not in refusals:
            told = "; ".join(filter(None, refusals))
            raise TargetError(f"a latency of the library is measured on this machine, but {told}; compile there")
        return cls(found[refusals.index(None)].name, Request.of(options.tune))

    @property
    def runtime(self) -> str:
        """Which library, built by what."""
        return f"the native library for {self.isa}, TVM {metadata.version(PACKAGE)}"

    def __call__(
        self, graphs: Sequence[tuple[Lowered, Exported]], samples: Sequence[Feeds], store: Path, seconds: float
    ) -> list[TimedProgram]:
        """Raises NoKernel and TargetError as building the library does."""
        ready = [replace(lowered, model=check_model(lowered.model, DELIVERED)) for lowered, _ in graphs]
        _, exported = graphs[0]

        def timed(batching: Batching, taken: Sequence[Feeds]) -> list[TimedProgram]:
            return self._time(ready, taken, batching, store, seconds)

        return batched(ready[0].model, exported, samples, timed)

    def _time(
        self, graphs: Sequence[Lowered], samples: Sequence[Feeds], batching: Batching, store: Path, seconds: float
    ) -> list[TimedProgram]:
        """Times of libraries that take samples in one way."""
        choices = Choices(batching, self.isa, store, self.tuning)
        with scratch() as temporary:
            job = Path(temporary)
            folders = [job / str(place) for place in range(len(graphs))]
            for folder, lowered in zip(folders, graphs, strict=True):
                folder.mkdir()
                (folder / JOB).write_text(json.dumps(program_job(folder, lowered, samples, choices)))
            write_npz(job / VALUES.format(0), samples[0])
            (job / JOB).write_text(json.dumps({"programs": [folder.name for folder in folders], "seconds": seconds}))
            run_job(job, TIMING_WORKER, DELIVERED)
            report = json.loads((job / REPORT).read_text())
        return [TimedProgram.from_json(entry) for entry in report["programs"]]
