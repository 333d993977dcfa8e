"""How often the label is among the k likeliest classes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.evaluation.masks import no_such_class, scores_by_place
from ptqc.tools.evaluating.metric import Case, Share


@dataclass(frozen=True)
class TopK(Share):
    """The judged output has scores of classes, or is the class itself.

    The label is the number of the class, or has one for each position; numbers below 0 do not count.
    """

    name: ClassVar[str] = "top"
    shown: ClassVar[str] = "top-1, top-5"
    k: int = 1

    @classmethod
    def of(cls, parameter: str) -> "TopK | None":
        """See `Metric`."""
        k = int(parameter or 1) if parameter.isdecimal() or not parameter else 0
        return cls(k) if k > 0 else None

    @property
    def called(self) -> str:
        """See `Metric`."""
        return f"{self.name}-{self.k}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """See `Metric`."""
        return f"top-{self.k} accuracy, %"

    def measure(self, case: Case) -> tuple[float, ...]:
        """Hits and predictions."""
        answer, label = case.answers[0], case.whole("classes")
        if answer.dtype.kind in "iub" and self.k > 1:
            raise case.refused(
                f"output {case.output!r} has one class and no scores: give one that has, with --score-output"
            )
        if answer.dtype.kind in "iub" and answer.size != label.size:
            raise case.refused(f"output {case.output!r} has {answer.size} classes, and the label {label.size}")
        if answer.dtype.kind in "iub":
            hits = answer.reshape(label.shape) == label
        else:
            scores = _rows(case, answer, label)
            # A class is as likely as those with the same score in front of it: argmax takes the first, or NaN.
            own = np.take_along_axis(scores, np.maximum(label, 0).reshape(-1, 1), 1)
            above = (~(scores <= own)).sum(1)
            ties = (scores == own) & (np.arange(scores.shape[1]) < label.reshape(-1, 1))
            hits = above + ties.sum(1) < self.k
        counted = label.reshape(-1) >= 0
        return 100 * float(np.asarray(hits).reshape(-1)[counted].sum()), float(counted.sum())

    def guessing(self, case: Case) -> float | None:
        """See `Metric`."""
        answer, label = case.answers[0], case.whole("classes")
        return None if answer.dtype.kind in "iub" else 100 * self.k / _rows(case, answer, label).shape[1]


def _rows(case: Case, answer: np.ndarray, label: np.ndarray) -> np.ndarray:
    """(predictions, classes)."""
    rows = scores_by_place(answer, label)
    if rows is None:
        raise case.refused(f"output {case.output!r} has shape {answer.shape}, and the label {label.shape}")
    if label.max(initial=0) >= rows.shape[1]:
        raise case.refused(no_such_class(label.max(), f"output {case.output!r}", rows.shape[1]))
    return rows
