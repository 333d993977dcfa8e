"""Where the times of kernels come from that choose their tiles: this machine's GPU, a table, or nowhere."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ptqc.codegen.cuda.emulator.opening import STAND_INS
from ptqc.codegen.cuda.gpu_specs import gpu_of
from ptqc.codegen.cuda.isa import TARGET
from ptqc.codegen.cuda.jobs import EFFORT, CudaChoices
from ptqc.codegen.cuda.options import AUTO, OFF, QUICK, CudaOptions
from ptqc.codegen.cuda.times_table import GpuTimes
from ptqc.codegen.cuda.trials import DONE
from ptqc.codegen.kernels.jobs import program_job
from ptqc.codegen.kernels.process import JOB, Work
from ptqc.errors import NoKernel, TargetError, UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime import cuda
from ptqc.runtime.cuda import CudaDevice
from ptqc.utils.progress import SILENT_STAGE, Stage, following
from ptqc.utils.scratch import scratch

# It compiles kernels; the GPU is another process's.
TUNE = Work("ptqc.codegen.cuda.measuring:measure", before=STAND_INS)


@dataclass(frozen=True)
class Tuner:
    """What a compile does about tiles. device: a GPU that kernels are measured on. times: measured before.
    is_asked: whether a failure to measure ends the compile. reason: why a GPU that is there is not asked."""

    device: CudaDevice | None = None
    times: GpuTimes | None = None
    is_asked: bool = False
    reason: str = ""

    @classmethod
    def of(cls, options: CudaOptions) -> Self:
        """What `CudaOptions.tune` asks for. Raises UsageError where it is none of what there is, and TargetError where
        there has to be a GPU and is none."""
        if options.tune == OFF:
            return cls()
        if options.tune == QUICK:
            return cls(_required_device(), is_asked=True)
        if options.tune != AUTO:
            return cls(times=_read(Path(options.tune)))
        try:
            device = cuda.find()
        except TargetError:
            return cls()
        own = gpu_of(device.capability)
        if options.gpus == (own,):
            return cls(device)
        return cls(
            reason=f"{device.name} is {own}, and the library is for {', '.join(options.gpus)}, which all run the same "
            "tiles: --tune quick takes those that are the fastest here"
        )

    def tuned(
        self, lowered: Lowered, samples: Sequence[Feeds], choices: CudaChoices, stage: Stage = SILENT_STAGE
    ) -> CudaChoices:
        """The choices with times of the kernels of a graph. Raises NoKernel; TargetError where times have to be."""
        if self.device is None:
            return replace(choices, times=self.times, untuned=self.reason)
        try:
            times = _measured(lowered, samples, replace(choices, device=self.device, effort=EFFORT), stage)
        except NoKernel:
            raise
        except TargetError as error:
            if self.is_asked:
                raise
            return replace(choices, untuned=str(error))
        return replace(choices, times=times)


def _required_device() -> CudaDevice:
    try:
        return cuda.find()
    except TargetError as error:
        raise TargetError(
            f"tuning times kernels on this machine's GPU, but {error}; compile with --tune off"
        ) from error


def _read(path: Path) -> GpuTimes:
    if not path.exists():
        known = ", ".join((AUTO, OFF, QUICK))
        raise UsageError(f"tune is {str(path)!r}; known: {known}, or a folder or file that a tuned compile wrote")
    return GpuTimes.read(path)


def _measured(lowered: Lowered, samples: Sequence[Feeds], choices: CudaChoices, stage: Stage) -> GpuTimes:
    with scratch() as temporary:
        job = Path(temporary)
        (job / JOB).write_text(json.dumps(program_job(job, lowered, samples, choices)))
        with following(job / DONE, stage):
            return GpuTimes.from_json(TUNE.run(job, TARGET))
