"""What a planted fault is: a wrong function in the place of a right one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What the checks of the written file say.
TUNED, ASKED, DIFFER = "is not what was tuned", "the plan asks", "integers differ"

Changed = Callable[[Any], Any]  # from the right function to the wrong one


@dataclass(frozen=True)
class Fault:
    """A wrong function in the place of a right one. network: see `fault_networks`; found: what the error says."""

    place: Any
    name: str
    change: Changed
    network: str
    found: str


def always(answer: Any) -> Changed:
    return lambda _right: lambda *_args, **_options: answer


def given(change: Callable[..., Any]) -> Changed:
    """The right answer, changed."""
    return lambda right: lambda *args, **options: change(right(*args, **options))
