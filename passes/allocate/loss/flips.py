"""How many top classes a loss of class scores is likely to change, told from the float scores alone.

Noise of variance σ² on every score costs KL ≈ ½ σ² (1 − Σ_c p_c²) to second order, and the two best classes change
places with probability Φ(−m / (σ√2)) where the second is m behind. Both are means over predictions.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ptqc.losses.base import some_rows
from ptqc.losses.classes import Classes

MOST_ROWS = 4096
HALVINGS = 50
RANGE = (1e-8, 1e2)  # of losses
SMALLEST_SHARE = 1e-9


@dataclass(frozen=True)
class Flips:
    """margins: of the best class before the second, in log probabilities. doubt: the mean of 1 − Σ p²."""

    margins: np.ndarray
    doubt: float

    @classmethod
    def of(cls, kind: Classes, values: Iterable[np.ndarray]) -> "Flips":
        """What float outputs say."""
        rows = list[np.ndarray]()
        for value in values:
            rows.append(some_rows(kind.log_probabilities(value), kind.axis)[:MOST_ROWS])
            if sum(map(len, rows)) >= MOST_ROWS:
                break
        log_p = np.concatenate(rows)[:MOST_ROWS]
        if log_p.shape[1] < 2:
            return cls(np.full(len(log_p), np.inf), 1.0)
        best = np.sort(log_p, axis=1)[:, -2:]
        doubt = float(np.mean(1 - np.exp(2 * log_p).sum(1)))
        return cls(best[:, 1] - best[:, 0], max(doubt, 1e-6))

    def share(self, loss: float) -> float:
        """The share of predictions that change where the mean divergence is `loss`."""
        sigma = math.sqrt(2 * max(loss, RANGE[0]) / self.doubt)
        return max(float(np.mean([0.5 * math.erfc(m / (2 * sigma)) for m in self.margins])), SMALLEST_SHARE)

    def loss(self, share: float, most: float) -> float:
        """The loss, at most `most`, with which this share changes."""
        low, high = math.log(RANGE[0]), math.log(most)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share(math.exp(middle)) < share else (low, middle)
        return math.exp(low)
