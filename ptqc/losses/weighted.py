"""Means over places (anchors, pixels) of which each counts as much as the float model finds there."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

# Least share of places that anything is taken to be found at.
LEAST_SHARE = 1e-4
# (weights, rows) of each sample: (places,) and (places, channels). Read several times, since all may be too many.
Samples = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Weighted:
    """share: mean weight of a place. variance: of each channel."""

    share: float
    variance: np.ndarray

    @classmethod
    def of(cls, samples: Samples) -> "Weighted":
        """Of some samples, with at least LEAST_SHARE of the places."""
        count = sum(len(weight) for weight, _ in samples())
        total = max(sum(float(weight.sum()) for weight, _ in samples()), LEAST_SHARE * count)
        mean = sum(weight @ rows for weight, rows in samples()) / total
        variance = sum(weight @ (rows - mean) ** 2 for weight, rows in samples()) / total
        return cls(total / count, np.asarray(variance))


def mean_of(arrays: Iterable[np.ndarray]) -> float:
    """The mean of all numbers of several arrays."""
    result = [(float(array.sum(dtype=np.float64)), array.size) for array in arrays]
    return sum(total for total, _ in result) / max(sum(size for _, size in result), 1)
