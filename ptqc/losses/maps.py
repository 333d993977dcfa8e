"""Images and maps of numbers: a value for every pixel and channel. The loss is that of `ptqc.losses.relative`."""

from dataclasses import dataclass
from typing import ClassVar

from ptqc.losses.base import OutputFacts, OutputKind
from ptqc.losses.relative import Relative


@dataclass(frozen=True)
class Map(Relative):
    """axis: of the channels."""

    name: ClassVar[str] = "map"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The output is a map where it has rank 4 or more."""
        return cls.asked(facts) if facts.rank >= 4 else None

    def describe(self) -> str:
        return "image or map" + ("" if self.axis is None else f", channels on axis {self.axis}")
