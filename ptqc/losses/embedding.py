"""Vectors whose direction counts: of sentences, faces, speakers.

loss = 1 − cos(y, ŷ) and, where vectors are not of one length, ½ (|ŷ| / |y| − 1)² more; mean over the vectors. Both
together are, to first order, half the squared error relative to |y|².
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.errors import UsageError
from ptqc.losses.base import COSINE, LOW_COSINE, Figure, OutputFacts, OutputKind, Pair, Unit, decibels, rows
from ptqc.losses.classes import MANY, are_alike, is_flat
from ptqc.losses.words import CLASSES, EMBEDDINGS, PLACES, says

SHORTEST = 8
LENGTH_TOLERANCE = 1e-3
SMALLEST_LENGTH = 1e-30


@dataclass(frozen=True)
class Embedding(OutputKind):
    """axis: along which a vector runs. normalized: whether all have one length."""

    axis: int = 1
    normalized: bool = False
    name: ClassVar[str] = "embedding"
    is_target: ClassVar[bool] = True

    @property
    def unit(self) -> Unit:
        return COSINE

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Vectors of one length; what its name calls so; else one long, flat vector in a sample."""
        if facts.axis is None or facts.channels < SHORTEST or says(facts.name, CLASSES | PLACES):
            return None
        if facts.shape in facts.inputs:
            return None
        one = facts.positions == facts.values[0].shape[0]
        flat = facts.channels >= MANY and is_flat(facts) and not are_alike(facts)
        result = of_one_length(facts) or (one and (flat or says(facts.name, EMBEDDINGS)))
        return cls.asked(facts) if result else None

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        if not facts.rank:
            raise UsageError(f"loss: output {facts.name!r} is one number and cannot be an {cls.name}")
        axis = facts.rank - 1 if facts.axis is None else facts.axis
        return cls(axis, facts.axis is not None and of_one_length(facts))

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        cosines, ratios = self._compared(reference, quantized)
        lost = 1 - cosines if self.normalized else 1 - cosines + 0.5 * (ratios - 1) ** 2
        return {"": float(lost.mean())}

    def _compared(self, reference: np.ndarray, quantized: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and ratios of lengths; vectors of zeros are equal, and at right angles to others."""
        y, z = rows(reference, self.axis), rows(quantized, self.axis)
        first, second = (np.linalg.norm(x, axis=1) for x in (y, z))
        both_zero = np.maximum(first, second) < SMALLEST_LENGTH
        cosines = (y * z).sum(1) / np.maximum(first * second, SMALLEST_LENGTH)
        ratios = second / np.maximum(first, SMALLEST_LENGTH)
        return np.where(both_zero, 1.0, np.minimum(cosines, 1.0)), np.where(first < SMALLEST_LENGTH, 1.0, ratios)

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told."""
        cosines = np.concatenate([self._compared(*pair)[0] for pair in pairs])
        del loss
        mean, least = float(cosines.mean()), float(cosines.min())
        result = [Figure("mean cosine", mean, f"mean cosine {mean:.4f}", LOW_COSINE)]
        return [*result, Figure("least cosine", least, f"least {least:.4f}"), *decibels(sqnr)]

    def describe(self) -> str:
        return f"embedding along axis {self.axis}, {'' if self.normalized else 'not '}normalized"


def of_one_length(facts: OutputFacts) -> bool:
    """Whether several different vectors have one length."""
    vectors = facts.rows()
    lengths = np.linalg.norm(vectors, axis=1)
    if len(vectors) < 2 or lengths.min() <= 0 or np.ptp(vectors, axis=0).max() < LENGTH_TOLERANCE * lengths.max():
        return False
    return bool(np.ptp(lengths) < LENGTH_TOLERANCE * lengths.mean())
