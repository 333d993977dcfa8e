"""Whether pairs that belong together are found to: Spearman's rank correlation of cosines with given similarities."""

from typing import ClassVar

import numpy as np

from ptqc.tools.evaluating.metric import Case, Metric, cosine, vector


class Similarity(Metric):
    """Two samples that follow each other are a pair, and its label is a number: the more alike they are, the larger."""

    name: ClassVar[str] = "similarity"
    title = "Spearman's correlation of similarities, %"
    samples: ClassVar[int] = 2

    @classmethod
    def of(cls, parameter: str) -> "Similarity | None":
        """See `Metric`."""
        return None if parameter else cls()

    def measure(self, case: Case) -> tuple[float, ...]:
        """The cosine of both answers, and the label."""
        label = np.asarray(case.label)
        if label.size != 1 or label.dtype.kind not in "iuf":
            raise case.refused(f"the label is {case.label!r}, expected a number that says how alike the two are")
        return cosine(vector(case, 0), vector(case, 1)), float(label.item())

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`; NaN has no rank."""
        if np.isnan(measured).any():
            return float("nan")
        result, wanted = (ranks(column) for column in measured.T)
        result, wanted = result - result.mean(), wanted - wanted.mean()
        sizes = float(np.linalg.norm(result) * np.linalg.norm(wanted))
        return 100 * float(result @ wanted) / sizes if sizes else float("nan")


def ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value in order; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which])
