"""What a compile with a latency budget tells: predicted and measured times, whole and of each operator.

Where no time is measured, as of a library for chips that are not here, what was delivered is predicted once more,
kernel by kernel; what would be measured is null then.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ptqc.errors import Missed
from ptqc.execution.profile import Profile
from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note
from ptqc.passes.allocate.cost_model import Timed

MILLISECOND, MICROSECOND = 1e6, 1e3
STEP = "latency"


@dataclass(frozen=True)
class LatencyReport:
    """document: for the manifest."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...]

    def check(self) -> None:
        """Raises Missed where the file takes longer than its budget."""
        if self.notes:
            raise Missed(f"{self.notes[0].message}; without strict the file is delivered all the same")


def latency_report(timed: Timed, plan: Plan, real: Profile, found: Profile) -> LatencyReport:
    """The times of a delivered file beside its prediction. real: of the float network at the same time."""
    is_measured = timed.times.is_measured
    predicted = timed.network.predict(timed.times, plan.params) if is_measured else found.nanoseconds
    document = {
        "budget": str(timed.budget),
        "budget_ms": timed.budget.nanoseconds / MILLISECOND,
        "runtime": timed.times.runtime,
        "predicted_ms": predicted / MILLISECOND,
        "measured_ms": found.nanoseconds / MILLISECOND if is_measured else None,
        "float_ms": real.nanoseconds / MILLISECOND,
        "operators": _operators(timed, plan, found.charges),
        "conversions": _conversions(timed, plan, found.charges),
        "times": timed.times.to_json(),
    }
    return LatencyReport(document, _over_budget(timed, found))


def _operators(timed: Timed, plan: Plan, charges: Mapping[Hashable, float]) -> list[dict[str, Any]]:
    times, codes = timed.times, timed.network.on_codes(plan.params)
    predicted = timed.network.operator_times(times, plan.params) if times.is_measured else charges
    return [
        {
            "node": o.node,
            "operator": o.op_type,
            "compute": "integer" if o.node in codes else "float",
            "predicted_us": predicted.get(o.node, 0.0) / MICROSECOND,
            "measured_us": charges.get(o.node, 0.0) / MICROSECOND if times.is_measured else None,
            "float_us": times.floats.get(o.node, 0.0) / MICROSECOND,
            "integer_us": times.integers.get(o.node, 0.0) / MICROSECOND if o.tensors else None,
        }
        for o in timed.network.operators
    ]


def _conversions(timed: Timed, plan: Plan, charges: Mapping[Hashable, float]) -> dict[str, float | None]:
    operators = {o.node for o in timed.network.operators}
    found = timed.network.conversion_times(timed.times, plan.params)
    taken = sum(ns for key, ns in charges.items() if key not in operators)
    return {
        "tensors": len(found),
        "predicted_us": (sum(found.values()) if timed.times.is_measured else taken) / MICROSECOND,
        "measured_us": taken / MICROSECOND if timed.times.is_measured else None,
    }


def _over_budget(timed: Timed, found: Profile) -> tuple[Note, ...]:
    if found.nanoseconds <= timed.budget.nanoseconds:
        return ()
    what = "one run of the library" if timed.budget.target else "one run"
    took, remedy = "took", "run it again where nothing else runs, or give a smaller budget"
    if not timed.times.is_measured:
        took, remedy = "is predicted to take", "give a smaller budget"
    message = f"{what} {took} {found.nanoseconds / MILLISECOND:.3g} ms, over the budget of {timed.budget}: {remedy}"
    return (Note(STEP, "", message, Level.WARNING),)
