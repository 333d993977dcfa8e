"""Class scores that a softmax makes probabilities of, and such probabilities.

loss = KL(float ‖ compiled) = Σ_c p_c log(p_c / q_c) over the class axis, mean over predictions, in nats. In a detector,
where one class is the background b, it is the sum over the places divided by Σ (1 − p_b): per thing that is found.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ptqc.errors import UsageError
from ptqc.losses.base import (
    FITTED,
    LOW_AGREEMENT,
    NAT,
    PER_DETECTION,
    Answers,
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
from ptqc.losses.divergence import divergence, log_probabilities, log_softmax
from ptqc.losses.weighted import LEAST_SHARE, mean_of
from ptqc.losses.words import CLASSES, EMBEDDINGS, PLACES, says

# From so many numbers on, rows whose softmax spreads over more than the share FLAT of them are no class scores.
MANY, FLAT = 32, 0.5
# Rows of at least SEVERAL numbers, each of a cosine over ALIKE with their mean, are places, and no class scores where
# a softmax would be surer than SURE of one and the same class.
SEVERAL, ALIKE, SURE = 4, 0.98, 0.999
SUM_TOLERANCE = 1e-3
# A class that has more than this of the probability at the places of a detector is the background.
MOST = 0.5
SAME_CLASS = "same top class"
# Classes that are told of a prediction.
TOP = 3


@dataclass(frozen=True)
class Classes(Head):
    """axis: of the classes. background: the class that most places of a detector have; None: this is no detector."""

    called: ClassVar[str]
    axis: int = 1
    background: int | None = None
    share: float = field(default=1.0, compare=False, metadata=FITTED)

    @property
    def unit(self) -> Unit:
        return NAT if self.background is None else PER_DETECTION

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        if not facts.rank:
            raise UsageError(f"loss: output {facts.name!r} is one number and cannot be {cls.name}")
        return cls(facts.rank - 1 if facts.axis is None else facts.axis)

    def same(self, reference: np.ndarray, quantized: np.ndarray) -> np.ndarray:
        """Of every prediction, whether its top class is the same; of a detector, of those that are not background."""
        real, result = (np.ravel(value.argmax(self.axis)) for value in (reference, quantized))
        is_number = ~np.ravel(np.isnan(quantized).any(self.axis))
        return np.asarray((is_number & (real == result))[real != self.background])

    @abstractmethod
    def log_probabilities(self, value: np.ndarray) -> np.ndarray:
        """Logarithms of the probabilities."""

    def beside_boxes(self, axis: int | None, facts: OutputFacts) -> "Head | None":
        """It has to have a class that takes most of the probability."""
        if axis != self.axis:
            return None
        mean = np.mean([np.exp(rows(self.log_probabilities(value), axis)).mean(0) for value in facts.values], axis=0)
        return replace(self, background=int(mean.argmax())) if mean.max() > MOST else None

    def weights(self, value: np.ndarray) -> np.ndarray:
        assert self.background is not None
        return np.asarray(-np.expm1(rows(self.log_probabilities(value), self.axis)[:, self.background]))

    def scores(self, value: np.ndarray) -> np.ndarray:
        result = np.exp(rows(self.log_probabilities(value), self.axis))
        result[:, self.background] = 0
        return np.asarray(result)

    def fitted(self, values: Arrays) -> Self:
        """With its constants."""
        if self.background is None:
            return self
        return replace(self, share=max(mean_of(self.weights(value) for value in values), LEAST_SHARE))

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        log_p, log_q = (self.log_probabilities(x) for x in (reference, quantized))
        return {"": divergence(log_p, log_q, self.axis) / self.share}

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told."""
        same = np.concatenate([self.same(a, b) for a, b in pairs])
        del loss
        share = float(same.mean()) if same.size else 1.0
        return [Figure(SAME_CLASS, share, f"{SAME_CLASS} in {100 * share:.1f} %", LOW_AGREEMENT), *decibels(sqnr)]

    def answers(self, reference: np.ndarray, quantized: np.ndarray) -> Answers | None:
        log_p, log_q = (rows(self.log_probabilities(value), self.axis) for value in (reference, quantized))
        if log_p.shape != log_q.shape or not log_p.size:
            return None
        places = np.moveaxis(reference, self.axis, -1).shape[:-1]
        worst = int((np.exp(log_p) * (log_p - log_q)).sum(1).argmax())
        place = ", ".join(map(str, np.unravel_index(worst, places))) if len(log_p) > 1 else ""
        return Answers(place, _likeliest(log_p[worst]), _likeliest(log_q[worst]))

    def describe(self) -> str:
        beside = "" if self.background is None else f", at many positions, class {self.background} the background"
        return f"{self.called} over axis {self.axis}{beside}"


def _likeliest(log_probabilities: np.ndarray) -> tuple[tuple[int, float], ...]:
    """The first classes, and their probabilities."""
    order = np.argsort(-log_probabilities, kind="stable")[:TOP]
    return tuple((int(label), float(np.exp(log_probabilities[label]))) for label in order)


@dataclass(frozen=True)
class Logits(Classes):
    """Scores before the softmax."""

    name: ClassVar[str] = "logits"
    called: ClassVar[str] = "class scores, softmax"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """What its name calls so; else rows that come from a layer and are neither flat nor alike."""
        if says(facts.name, CLASSES) and facts.rank >= 2:
            return cls.asked(facts)
        if facts.axis is None or facts.channels < 2 or facts.shape in facts.inputs or says(facts.name, PLACES):
            return None
        if facts.rank > 3 or (facts.rank == 3 and not facts.direct) or says(facts.name, EMBEDDINGS):
            return None
        if not (facts.traced or facts.alone):
            return None
        return None if is_flat(facts) or (are_alike(facts) and is_sure(facts)) else cls(facts.axis)

    def log_probabilities(self, value: np.ndarray) -> np.ndarray:
        return log_softmax(value, self.axis)


@dataclass(frozen=True)
class Probabilities(Classes):
    """What a softmax made."""

    name: ClassVar[str] = "probabilities"
    called: ClassVar[str] = "class probabilities"

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """The output is probabilities behind a softmax, or where rows sum to one."""
        if facts.axis is None or facts.channels < 2:
            return None
        rows = facts.rows()
        sums = np.abs(rows.sum(1) - 1).max() < SUM_TOLERANCE and rows.min() >= 0
        return cls(facts.axis) if sums else None

    def log_probabilities(self, value: np.ndarray) -> np.ndarray:
        return log_probabilities(value, self.axis)


def is_flat(facts: OutputFacts) -> bool:
    """Whether rows of many numbers are such that no class would stand out."""
    if facts.axis is None or facts.channels < MANY:
        return False
    log_p = log_softmax(facts.rows(), 1)
    spread = np.exp(-(np.exp(log_p) * log_p).sum(1))
    return bool(spread.mean() > FLAT * facts.channels)


def is_sure(facts: OutputFacts) -> bool:
    """Whether a softmax leaves one number of every row."""
    assert facts.axis is not None
    return bool(np.exp(log_softmax(facts.rows(), 1)).max(1).min() > SURE)


def are_alike(facts: OutputFacts) -> bool:
    """Whether all rows are nearly their mean, as coordinates are."""
    rows = facts.rows()
    if facts.channels < SEVERAL or len(rows) < SEVERAL:
        return False
    centred = rows - rows.mean(1, keepdims=True)
    mean = centred.mean(0)
    norms = np.linalg.norm(centred, axis=1) * np.linalg.norm(mean)
    return bool((centred @ mean > ALIKE * norms).all())
