"""Boxes of a detector whose scores are another output: places of the background decide nothing about them.

With w_a, the float model's largest score at anchor (or pixel) a, or what a softmax leaves for others than the
background, variances v (weighted by w, too) and BOX of `ptqc.losses.detection`,
loss = BOX Σ_a w_a mean_c (ŷ_{a,c} − y_{a,c})² / v_c / Σ_a w_a,
so that boxes and scores in two outputs lose what they lose as one output of kind `detection`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ptqc.errors import UsageError
from ptqc.losses.base import (
    FITTED,
    LARGE_LOSS,
    PER_DETECTION,
    RELATIVE,
    Arrays,
    Figure,
    Head,
    OutputFacts,
    OutputKind,
    Pair,
    Unit,
    decibels,
    rows,
)
from ptqc.losses.detection import BOX
from ptqc.losses.relative import floored
from ptqc.losses.weighted import Weighted


@dataclass(frozen=True)
class Boxes(OutputKind):
    """axis: of the coordinates. scores: the output that weighs. head: its kind; None before it was looked for."""

    axis: int = 2
    scores: str = ""
    head: Head | None = None
    share: float = field(default=1.0, compare=False, metadata=FITTED)
    variance: np.ndarray | None = field(default=None, compare=False, metadata=FITTED)
    name: ClassVar[str] = "boxes"

    @property
    def unit(self) -> Unit:
        return PER_DETECTION

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Never alone: `ptqc.losses.heads` looks for the scores."""
        del facts
        return None

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        if facts.axis is None:
            raise UsageError(f"loss: output {facts.name!r} cannot be {cls.name}: no axis of coordinates was found")
        return cls(facts.axis)

    def read(self, name: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(places, coordinates and the weight behind them)."""
        assert self.head is not None
        weight = self.head.weights(outputs[self.scores])
        return np.concatenate([rows(outputs[name], self.axis), weight[:, None]], 1)

    def fitted(self, values: Arrays) -> Self:
        """With its constants."""
        result = Weighted.of(lambda: ((value[:, -1], value[:, :-1]) for value in values))
        return replace(self, share=result.share, variance=floored(result.variance))

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        assert self.variance is not None
        error = ((quantized - reference)[:, :-1] ** 2 / self.variance).mean(1)
        return {"": float((reference[:, -1] * error).mean() / self.share)}

    def combine(self, losses: Mapping[str, float]) -> float:
        """Of the output."""
        return BOX * float(sum(losses.values()))

    def units(self) -> dict[str, Unit]:
        return {"": RELATIVE}

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told; the background, which SQNR counts, warns of nothing."""
        del pairs
        lost = loss / BOX
        text = f"{100 * lost:.2f} % of the variance lost where something is found"
        return [*decibels(sqnr), Figure("variance", 1 - lost, text, 1 - LARGE_LOSS)]

    def describe(self) -> str:
        return f"boxes along axis {self.axis}, weighed by the scores of {self.scores!r}"
