"""A compile whose measurements are done: what every later stage takes."""

from dataclasses import dataclass, field

import onnx_ir as ir

from ptqc.budget import Budgets
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.cost_model import Timed
from ptqc.passes.quantize.phases import Decided
from ptqc.passes.quantize.prepare import Prepared
from ptqc.utils.memory import MemoryPeak


@dataclass(frozen=True)
class Job:
    """What was measured of a model, and what is asked of its file.

    entry: name of the measurements in the store. started: on the monotonic clock. timed: where a latency is asked for.
    memory: the most that was held so far.
    """

    prepared: Prepared
    decided: Decided
    options: CompileOptions
    notes: tuple[Note, ...]
    entry: str
    budgets: Budgets
    started: float
    timed: Timed | None = None
    memory: MemoryPeak = field(default_factory=MemoryPeak)

    @property
    def limit(self) -> int | None:
        """Bytes that the file may have; None without a budget."""
        origin, size = self.prepared.origin, self.budgets.size
        return None if size is None else size.limit(origin.size, origin.weights)

    @property
    def model(self) -> ir.Model:
        """The float model in normal form."""
        return self.decided.model
