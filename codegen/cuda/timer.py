"""Times of CUDA libraries: a child process writes their kernels, whose times are predicted or measured on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ptqc.codegen.cuda.emulator.opening import STAND_INS
from ptqc.codegen.cuda.gpu_specs import CHIPS, gpu_of
from ptqc.codegen.cuda.isa import TARGET
from ptqc.codegen.cuda.jobs import CudaChoices
from ptqc.codegen.cuda.options import CudaOptions
from ptqc.codegen.cuda.trials import TimingEffort
from ptqc.codegen.cuda.tuner import Tuner
from ptqc.codegen.kernels.jobs import timed
from ptqc.codegen.kernels.process import Work
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program.batching import Batching
from ptqc.codegen.program.timing import TimedProgram
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime.cuda import CudaDevice

# A budget is of one sample.
EFFORT = TimingEffort(samples=(1,))


@dataclass(frozen=True)
class CudaTimer:
    """Predicts times on chips, of several the longest of each kernel; or measures kernels on a device, one by one.

    See `ptqc.codegen.targets.Timer`.
    """

    gpus: tuple[str, ...]
    device: CudaDevice | None = None

    @classmethod
    def of(cls, options: CudaOptions) -> Self:
        """Measures where this machine's GPU is what the library is for, and tuning may use it. Raises TargetError."""
        device = Tuner.of(options).device
        is_there = device is not None and options.gpus == (gpu_of(device.capability),)
        return cls(options.gpus, device if is_there else None)

    @property
    def is_measured(self) -> bool:
        """Whether there is a device."""
        return self.device is not None

    @property
    def runtime(self) -> str:
        """On which chips."""
        if self.device is not None:
            return f"the CUDA library on {self.device.name} ({self.gpus[0]}, driver {self.device.driver})"
        named = [f"{CHIPS[gpu].name} ({gpu})" for gpu in self.gpus]
        slowest = ", the slowest of them" if len(named) > 1 else ""
        return f"the CUDA library on {', '.join(named)}{slowest}"

    def __call__(
        self, graphs: Sequence[tuple[Lowered, Exported]], samples: Sequence[Feeds], store: Path, seconds: float
    ) -> list[TimedProgram]:
        """Raises NoKernel and TargetError as building the library does."""
        del seconds

        def choices(batching: Batching) -> CudaChoices:
            return CudaChoices(batching, self.gpus, store, self.device, EFFORT)

        # Kernels are compiled only to be measured.
        work = Work("ptqc.codegen.cuda.times:time", before=STAND_INS if self.is_measured else "")
        return timed(graphs, samples, choices, TARGET, work, unrolls=True)
