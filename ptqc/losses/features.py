"""Hidden states and features of tokens: a vector for every place. The loss is that of `ptqc.losses.relative`."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.losses.base import OutputFacts, OutputKind
from ptqc.losses.relative import Relative


@dataclass(frozen=True)
class Features(Relative):
    """axis: along which a vector runs."""

    name: ClassVar[str] = "features"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The output is features where it has rank 3 and an axis of channels."""
        return cls.asked(facts) if facts.rank == 3 and facts.axis is not None else None

    def describe(self) -> str:
        return "features of positions" + ("" if self.axis is None else f", channels on axis {self.axis}")
