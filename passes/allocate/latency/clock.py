"""Where a latency counts: what measures operators and files there."""

from typing import Protocol

from ptqc.execution.profile import Profile
from ptqc.ir.plan import Plan
from ptqc.options import CompileOptions
from ptqc.passes.allocate.cost_model import Times
from ptqc.passes.allocate.fit import Fitted
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.progress import Progress


class Clock(Protocol):
    """Measures on this machine: one sample on one thread, in turns with the float network. Or predicts for another."""

    def measure(self, decided: Decided, options: CompileOptions, progress: Progress) -> Times:
        """Times of operators in float and on codes, and of the conversions between."""

    def latencies(self, decided: Decided, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Nanoseconds of a run with nothing on codes, and of one like the plan with the table's numbers."""

    def profiles(self, decided: Decided, options: CompileOptions, fitted: Fitted) -> tuple[Profile, Profile]:
        """Nanoseconds of the float network and of what is delivered, with those of operators and conversions."""
