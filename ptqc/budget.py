"""Reads budgets as users write them; `CONSTRAINTS` lists every kind."""

import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ptqc.errors import UsageError
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.allocate.constraints.latency import LatencyBudget
from ptqc.passes.allocate.constraints.loss import LossBudget
from ptqc.passes.allocate.constraints.memory import MemoryBudget
from ptqc.passes.allocate.constraints.microcontroller import FlashBudget, RamBudget
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.state import BudgetReport, Budgets, Constraint, Quantity
from ptqc.utils.arguments import meant, shown

One = str | float  # a float is a fraction of the model's size, an int (which is a float to type checkers) bytes
AnyBudget = One | Sequence[One] | None

# In the order in which they decide.
CONSTRAINTS: tuple[type[Constraint], ...] = (
    SizeBudget,
    LatencyBudget,
    MemoryBudget,
    FlashBudget,
    RamBudget,
    CacheBudget,
    LossBudget,
)
ADVICE = "give 13%, 4.5MB, 2ms, 60MBram, 99%same or another form that `ptqc help budgets` lists"
UNITS = sorted({example.lstrip("0123456789.").partition("@")[0] for kind in CONSTRAINTS for example in kind.examples})


def parse_budgets(value: object, *, strict: bool = False) -> Budgets:
    """Read budgets. Raises UsageError where two of a kind cannot be joined, or as `parse` does."""
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    limits = [parse(one) for one in several if one is not None]
    constraints = list[Constraint]()
    for kind in CONSTRAINTS:
        of_kind = [limit for limit in limits if isinstance(limit, kind)]
        constraint = of_kind[0] if of_kind else kind.default()
        for other in of_kind[1:]:
            both = None if constraint is None else constraint.both(other)
            if both is None:
                written = " and ".join(map(str, of_kind))
                raise UsageError(
                    f"the budgets {written} are both of {kind.kind}, and cannot be joined: give one of them"
                )
            constraint = both
        if constraint is not None:
            constraints.append(constraint)
    return Budgets(tuple(constraints), strict)


def parse(value: object) -> Constraint:
    """Read "13%", "4.5MB", "4.2bit", "2ms", "60MBram", "9KBflash", "25%cache", "2nat", "99%same", "1%drop", 0.13, 9000.

    Raises UsageError naming it and the known forms.
    """
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if isinstance(value, Integral) and 1 < number <= 100:
            raise UsageError(f"budget {value} would be {value} bytes; did you mean '{value}%'?")
        if isinstance(value, Integral) and number > 0:
            return SizeBudget(number, "B")
        if 0 < number <= 1:
            return SizeBudget(float(f"{100 * number:.12g}"), "%")
    raise UsageError(
        f"budget {shown(value)} is neither a fraction of the model's size (0.13) nor a number of bytes (200_000); "
        f"as text, {ADVICE}"
    )


def _of_text(text: str) -> Constraint:
    pattern = r"\s*([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)\s*(%\s*[a-z]*|[A-Za-zµ/]+)\s*(?:@\s*([\w-]+)\s*)?"
    match = re.fullmatch(pattern, text)
    if match is None:
        raise UsageError(f"budget {text!r} is not understood{_percent(text)}; {ADVICE}")
    quantity = Quantity(text, float(match[1]), "".join(match[2].split()), match[3] or "")
    if quantity.number <= 0:
        raise UsageError(f"budget {text!r} must be positive; {ADVICE}")
    for kind in CONSTRAINTS:
        try:
            constraint = kind.parse(quantity)
        except UsageError as error:
            raise UsageError(f"{error}; {ADVICE}") from None
        if constraint is None:
            continue
        if quantity.target and not constraint.names_target:
            raise UsageError(
                f"budget {text!r} names a target with @, which only latency, flash and memory can; {ADVICE}"
            )
        return constraint
    raise UsageError(f"budget {text!r} has the unknown unit {quantity.unit!r}{meant([quantity.unit], UNITS)}; {ADVICE}")


def _percent(text: str) -> str:
    """Ask whether a number without a unit was meant as percent: 13 as it is, and 0.13 as a fraction."""
    try:
        number = float(text)
    except ValueError:
        return ""
    percent = 100 * number if number < 1 else number
    return f" (did you mean {percent:g}%?)" if 0 < percent <= 100 else ""


def sections_of(reports: Mapping[str, BudgetReport]) -> dict[str, Any]:
    """The manifest's section for each kind of budget that reports; None where there was none of the kind."""
    sections = {kind.kind: kind.section for kind in CONSTRAINTS if kind.section}
    return {section: dict(reports[kind].document) if kind in reports else None for kind, section in sections.items()}
