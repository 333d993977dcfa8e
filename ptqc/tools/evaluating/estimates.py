"""A score with its standard error, by the jackknife: what the score becomes without each group of cases.

Of g groups, with the scores θ₁ … θ_g that are left without each: √((g − 1)/g · Σ (θ_i − θ̄)²) (Tukey 1958). Of a mean,
with a case in each group, that is the usual standard error; it holds for ratios and for correlations of ranks as well.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

GROUPS = 200  # at most
Score = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Estimate:
    """error: the standard error of the value; NaN of a single case."""

    value: float
    error: float


def estimate(score: Score, measured: np.ndarray) -> Estimate:
    """The score of cases (cases, numbers)."""
    return Estimate(score(measured), _error(_left(score, measured)))


def difference(score: Score, first: np.ndarray, other: np.ndarray) -> Estimate:
    """How far the score of the other is above that of the first, on the same cases."""
    return Estimate(score(other) - score(first), _error(_left(score, other) - _left(score, first)))


def _left(score: Score, measured: np.ndarray) -> np.ndarray:
    """The score without each group: drawn cases, so that those of one kind are spread, in whatever order they lie."""
    count = min(GROUPS, len(measured))
    if count < 2:
        return np.full(1, np.nan)
    groups = np.random.default_rng(0).permutation(len(measured)) % count
    return np.array([score(measured[groups != group]) for group in range(count)])


def _error(left: np.ndarray) -> float:
    count = len(left)
    return float(np.sqrt((count - 1) / count * np.square(left - left.mean()).sum())) if count > 1 else float("nan")
