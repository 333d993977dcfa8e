"""Times of CUDA libraries, predicted: a child process writes their kernels, and none of them runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ptqc.codegen.cuda.chips import CHIPS
from ptqc.codegen.cuda.job_files import TARGET, TIMING_WORKER
from ptqc.codegen.cuda.jobs import CudaChoices
from ptqc.codegen.kernels.timers import timed
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.timing import TimedProgram
from ptqc.execute.onnxruntime import Feeds
from ptqc.lowered import Lowered


@dataclass(frozen=True)
class CudaTimer:
    """Predicts times on chips, of several the longest of each kernel; see `ptqc.codegen.targets.Timer`."""

    gpus: tuple[str, ...]
    is_measured: ClassVar[bool] = False

    @property
    def runtime(self) -> str:
        """On which chips."""
        named = [f"{CHIPS[gpu].name} ({gpu})" for gpu in self.gpus]
        slowest = ", the slowest of them" if len(named) > 1 else ""
        return f"the CUDA library on {', '.join(named)}{slowest}"

    def __call__(
        self, graphs: Sequence[tuple[Lowered, Exported]], samples: Sequence[Feeds], store: Path, seconds: float
    ) -> list[TimedProgram]:
        """Raises NoKernel and TargetError as building the library does."""
        del store, seconds

        def choices(batching: Batching) -> CudaChoices:
            return CudaChoices(batching, self.gpus)

        return timed(graphs, samples, choices, TARGET, TIMING_WORKER, unrolls=True)
