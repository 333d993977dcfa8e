"""States and caches, which the next run reads: they count little beside the answer.

The loss is that of `ptqc.losses.relative`; all states of a model together weigh SHARE of one output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ptqc.losses.base import Figure, OutputFacts, OutputKind, Pair, decibels
from ptqc.losses.relative import Relative

SHARE = 0.1
LOW_STATE_SQNR = 10.0  # dB


@dataclass(frozen=True)
class State(Relative):
    """axis: of the channels."""

    name: ClassVar[str] = "state"
    is_target: ClassVar[bool] = False

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The output is a state where it hands an input on."""
        return cls(facts.axis, facts.groups) if facts.carried else None

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told."""
        del pairs, loss
        return decibels(sqnr, LOW_STATE_SQNR)

    def describe(self) -> str:
        return f"state for the next run, all of which count as {SHARE:g} of an output"
