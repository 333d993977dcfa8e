"""What there is to choose about CUDA libraries, as their jobs have it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptqc.codegen.kernels.jobs import JobChoices


@dataclass(frozen=True)
class CudaChoices(JobChoices):
    """Chips that there is machine code for, and a folder of libraries that were built before."""

    gpus: tuple[str, ...]
    store: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """For the job; see `JobChoices`."""
        return {"gpus": list(self.gpus), "store": str(self.store) if self.store is not None else ""}
