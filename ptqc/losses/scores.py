"""Independent probabilities: several labels at once, speech or none, masks.

With p of the float model and q of the compiled one,
loss = Σ_c p log(p/q) + (1 − p) log((1 − p)/(1 − q)) in nats, a mean over predictions. Where an output has many places
(anchors, pixels), of which few show anything, it is the sum over the places divided by Σ max_c p, so that it is said
per thing that is found and not per place of the background.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ptqc.losses.base import FITTED, NAT, PER_DETECTION, Arrays, Head, OutputFacts, OutputKind, Unit, rows
from ptqc.losses.divergence import binary_divergence
from ptqc.losses.weighted import LEAST_SHARE, mean_of
from ptqc.losses.words import PLACES, says

COLOURS = 3


@dataclass(frozen=True)
class Scores(Head):
    """axis: of the labels; None for one. places: whether there are many predictions in a sample."""

    axis: int | None = None
    places: bool = False
    share: float = field(default=1.0, compare=False, metadata=FITTED)
    name: ClassVar[str] = "scores"

    @property
    def unit(self) -> Unit:
        return PER_DETECTION if self.places else NAT

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The output is scores behind a sigmoid, unless its name says places or its values are colours."""
        if not facts.groups or not all(group.scores for group in facts.groups) or says(facts.name, PLACES):
            return None
        image = facts.rank == 4 and facts.channels == COLOURS and any(len(shape) == 4 for shape in facts.inputs)
        return None if image else cls.asked(facts)

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        batch = facts.values[0].shape[0] if facts.rank else 1
        return cls(facts.axis, facts.positions > batch)

    def fitted(self, values: Arrays) -> Self:
        """With its constants."""
        if not self.places:
            return self
        return replace(self, share=max(mean_of(self.weights(value) for value in values), LEAST_SHARE))

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        result = binary_divergence(self.scores(reference), self.scores(quantized))
        return {"": float(result.sum(1).mean() / self.share)}

    def beside_boxes(self, axis: int | None, facts: OutputFacts) -> "Head | None":
        del facts
        return replace(self, axis=axis, places=True)

    def weights(self, value: np.ndarray) -> np.ndarray:
        return np.asarray(self.scores(value).max(1))

    def scores(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(-1, 1).astype(np.float64) if self.axis is None else rows(value, self.axis)

    def describe(self) -> str:
        along = "" if self.axis is None else f" along axis {self.axis}"
        return f"independent scores{along}{', at many positions' if self.places else ''}"
