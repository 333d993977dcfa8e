"""Numbers of which nothing more is known. The loss is that of `ptqc.losses.relative`."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.losses.base import OutputFacts, OutputKind
from ptqc.losses.relative import Relative


@dataclass(frozen=True)
class Regression(Relative):
    """axis: of the channels."""

    name: ClassVar[str] = "regression"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Any output can be regression."""
        return cls.asked(facts)

    def describe(self) -> str:
        return "numbers" + ("" if self.axis is None else f", channels on axis {self.axis}")
