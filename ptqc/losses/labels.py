"""Labels: integers of which each stands for something of its own, as ArgMax gives them.

The loss is the share that differs, at a rate of exchange: one label in a hundred counts as much as a relative squared
error that 8-bit activations may cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.losses.base import LOW_AGREEMENT, RELATIVE, Figure, OutputFacts, OutputKind, Pair, Unit

FEW = 0.01  # share of labels that may differ as 8-bit activations have it
RATE = RELATIVE.tolerance / FEW


@dataclass(frozen=True)
class Labels(OutputKind):
    """Equal or not."""

    name: ClassVar[str] = "labels"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Integers of 32 bits and more, and booleans; those of fewer bits are mostly pictures."""
        return cls() if facts.labels else None

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        """Any output can be labels."""
        del facts
        return cls()

    @property
    def unit(self) -> Unit:
        return RELATIVE

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        return {"": RATE * float((reference != quantized).mean())}

    def describe(self) -> str:
        return "labels"

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told; decibels of labels say nothing."""
        del sqnr
        count = sum(real.size for real, _ in pairs)
        share = sum(int((real == packed).sum()) for real, packed in pairs) / count if count else 1 - loss / RATE
        return [Figure("same label", share, f"same label in {100 * share:.1f} %", LOW_AGREEMENT)]
