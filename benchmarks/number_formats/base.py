"""What a number format of the literature is where formats are compared: what it makes of a weight, in how many bits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

SCALE_BITS = 16


@dataclass(frozen=True, eq=False)
class Rows:
    """Channels of a weight (R, d), what a unit of squared error costs in each place (R, d), and the channels it has.

    values may be a sample of the channels; count says how many there are. taps: weights of one input that follow each
    other in a channel.
    """

    values: np.ndarray
    importance: np.ndarray
    count: int
    taps: int = 1

    @classmethod
    def of(cls, values: np.ndarray, importance: np.ndarray | None = None, count: int | None = None) -> "Rows":
        """Channels that all count the same, and are all that there are, unless said otherwise."""
        if importance is None:
            importance = np.ones_like(values)
        return cls(values, np.broadcast_to(importance, values.shape), len(values) if count is None else count)

    @property
    def width(self) -> int:
        """Weights of a channel."""
        return int(self.values.shape[1])

    @property
    def size(self) -> int:
        """Weights of all channels."""
        return self.count * self.width


@dataclass(frozen=True, eq=False)
class Stored:
    """What is read back of a weight's rows (R, d), and the bits that store the whole weight with scales and tables."""

    values: np.ndarray
    bits: float


class NumberFormat(ABC):
    """A way to store a weight. name: in tables."""

    name: str

    @property
    def is_blocked(self) -> bool:
        """Whether scales belong to neighbours of a channel, not to all of it."""
        return False

    def fits(self, rows: Rows) -> bool:  # noqa: ARG002
        """Whether such channels can have it."""
        return True

    @abstractmethod
    def store(self, rows: Rows) -> Stored:
        """The weight rounded, each number for itself."""


def decibels(rows: Rows, stored: Stored) -> float:
    """Signal to quantization noise."""
    error = np.square(rows.values - stored.values, dtype=np.float64) * rows.importance
    signal = np.square(rows.values, dtype=np.float64) * rows.importance
    return float(10 * np.log10(signal.sum() / max(error.sum(), 1e-30)))
