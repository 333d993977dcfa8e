"""How far a compiled model's outputs are from the float model's, on the same inputs.

Classes: share of equal top classes, and the mean KL(float ‖ compiled) in nats per prediction. Everything: the relative
error, root mean square of the difference over that of the float outputs.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from harness import Column, Feeds, Run, number, percent, significant

SMALLEST_PROBABILITY = 1e-12

DIFFERENCE = Column("difference", "difference", number(3, sign=True))
SAME_CLASS = Column("same top-1", "top1_agreement", percent(2))
DIVERGENCE = Column("KL nat", "kl_nat", significant(3))
RELATIVE_ERROR = Column("relative error", "relative_error", significant(3))
COLUMNS = (DIFFERENCE, SAME_CLASS, DIVERGENCE, RELATIVE_ERROR)


class Agreement:
    """Sums over the runs of an evaluation. has_classes: the first output holds class scores on its last axis."""

    def __init__(self, has_classes: bool) -> None:
        self.has_classes = has_classes
        self.runs = self.predictions = self.equal = 0
        self.divergence = self.signal = self.error = 0.0

    def add(self, real: Sequence[np.ndarray], tested: Sequence[np.ndarray]) -> None:
        """One run of both models; a batch counts with all its samples."""
        self.runs += 1
        for wanted, value in zip(real, tested, strict=True):
            if wanted.dtype.kind == "f":
                self.signal += float(np.square(wanted, dtype=np.float64).sum())
                self.error += float(np.square(wanted.astype(np.float64) - value).sum())
        if self.has_classes:
            self._add_classes(class_scores(real[0]), class_scores(tested[0]))

    def _add_classes(self, real: np.ndarray, tested: np.ndarray) -> None:
        self.predictions += len(real)
        self.equal += int((real.argmax(-1) == tested.argmax(-1)).sum())
        log_p, log_q = log_probabilities(real), log_probabilities(tested)
        self.divergence += float((np.exp(log_p) * (log_p - log_q)).sum())

    def to_json(self) -> dict[str, float | None]:
        """The means; None for what does not apply."""
        count = self.predictions
        return {
            "predictions": count or self.runs,
            "top1_agreement": self.equal / count if count else None,
            "kl_nat": self.divergence / count if count else None,
            "relative_error": (self.error / self.signal) ** 0.5 if self.signal else None,
        }


def agreement_of(
    real: Sequence[Sequence[np.ndarray]], other: Sequence[Sequence[np.ndarray]], has_classes: bool
) -> Agreement:
    """How far outputs of runs are from the float model's."""
    result = Agreement(has_classes)
    for wanted, value in zip(real, other, strict=True):
        result.add(wanted, value)
    return result


class Comparing(Protocol):
    """What looks at the outputs of both models."""

    def add(self, real: Sequence[np.ndarray], tested: Sequence[np.ndarray]) -> None:
        """One run of both."""


def compared(real: Run, tested: Run, agreement: Comparing) -> Run:
    """The tested model, which on its way compares every run with the float model's."""

    def run(feeds: Feeds) -> list[np.ndarray]:
        outputs = tested(feeds)
        agreement.add(real(feeds), outputs)
        return outputs

    return run


def class_scores(output: np.ndarray) -> np.ndarray:
    """(predictions, classes) of an output with classes on the last axis that is longer than 1."""
    classes = next((size for size in reversed(output.shape) if size > 1), 1)
    scores: np.ndarray = np.asarray(output.reshape(-1, classes), np.float64)
    return scores


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Of scores (n, classes) before or after a softmax."""
    if np.all(scores >= 0) and np.allclose(scores.sum(-1), 1, atol=1e-3):
        scores = np.log(np.maximum(scores, SMALLEST_PROBABILITY))
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
