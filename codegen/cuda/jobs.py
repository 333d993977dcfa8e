"""What there is to choose about CUDA libraries, as their jobs have it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda.times_table import GpuTimes
from ptqc.codegen.cuda.trials import TimingEffort
from ptqc.codegen.kernels.jobs import JobChoices
from ptqc.runtime.cuda import CudaDevice

# As many samples as tiles are predicted for (`costs.SAMPLES`).
EFFORT = TimingEffort(samples=(1, 64))


@dataclass(frozen=True)
class CudaChoices(JobChoices):
    """Chips that there is machine code for, a folder of libraries that were built before, a GPU that kernels are
    measured on and how well, and times of kernels that choose their variants.

    untuned: why there are no times on a machine with a GPU.
    """

    gpus: tuple[str, ...]
    store: Path | None = None
    device: CudaDevice | None = None
    effort: TimingEffort = EFFORT
    times: GpuTimes | None = None
    untuned: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the job; see `JobChoices`."""
        return {
            "gpus": list(self.gpus),
            "store": str(self.store) if self.store is not None else "",
            "device": self.device and self.device.to_json(),
            "effort": asdict(self.effort),
            "times": self.times and self.times.to_json(),
        }
