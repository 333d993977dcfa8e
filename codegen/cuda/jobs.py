"""What there is to choose about CUDA libraries, as their jobs have it."""

from dataclasses import dataclass
from typing import Any

from ptqc.codegen.kernels.jobs import JobChoices


@dataclass(frozen=True)
class CudaChoices(JobChoices):
    """Chips that there is machine code for."""

    gpus: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For the job; see `JobChoices`."""
        return {"gpus": list(self.gpus)}
