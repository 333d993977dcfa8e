"""What there is to choose about libraries for processors, as their jobs have it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptqc.codegen.cpu.table import Request
from ptqc.codegen.kernels.jobs import JobChoices

NO_TUNING = Request()


@dataclass(frozen=True)
class Choices(JobChoices):
    """Instruction sets of the libraries, a folder of libraries that were built before, tuning, and the name of a static
    library where one is wanted.
    """

    isa: str
    store: Path | None = None
    tuning: Request = NO_TUNING
    static: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the job; see `JobChoices`."""
        store = str(self.store) if self.store is not None else ""
        return {"isa": self.isa, "store": store, "tuning": self.tuning.to_json(), "static": self.static}
