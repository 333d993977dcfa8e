"""How far answers turn: their cosine with the expected vector."""

from typing import ClassVar

import numpy as np

from ptqc.tools.evaluating.metric import Case, Metric, cosine, vector


class Cosine(Metric):
    """The label is a vector; without labels, answers are compared with those of the first model."""

    name: ClassVar[str] = "cosine"
    title = "mean cosine"
    needs_labels: ClassVar[bool] = False

    @classmethod
    def of(cls, parameter: str) -> "Cosine | None":
        """See `Metric`."""
        return None if parameter else cls()

    def measure(self, case: Case) -> tuple[float, ...]:
        """The cosine."""
        result = vector(case)
        first = Case(case.name, case.feeds, case.firsts, case.firsts, None, case.output, case.roles)
        wanted = vector(first) if case.label is None else case.wanted.astype(np.float64).reshape(-1)
        if result.shape != wanted.shape:
            raise case.refused(f"output {case.output!r} has {result.size} numbers, and the label {wanted.size}")
        return (cosine(result, wanted),)

    def score(self, measured: np.ndarray) -> float:
        """See `Metric`."""
        return float(measured.mean())

    def details(self, measured: np.ndarray) -> dict[str, float]:
        """The worst of all."""
        return {"worst": float(measured.min())}
