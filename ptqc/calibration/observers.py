"""Streaming observers of one tensor's values: state of fixed size, one pass, the same result in any order of samples.

The histogram's bins lie on a dyadic grid: bin k covers [k * 2^e, (k + 1) * 2^e). e is the smallest exponent with which
the range seen so far fits the fixed number of bins. When the range grows, pairs of bins merge (k becomes k >> 1), which
loses no count and gives exactly the histogram that a second pass over all values would.
"""

import math
from dataclasses import dataclass, field

import numpy as np

BINS = 2048
SAMPLED = 200_000  # values of one update that enter the histogram; more would cost time and change no range
# Bins narrower than this fraction of the largest magnitude would be finer than float32's own spacing.
FINEST = 22
SMALLEST_EXPONENT = -1000


@dataclass
class RangeObserver:
    """What is known about the finite values of one tensor.

    count, low, high: over every value.
    counts: values in each bin, over a deterministic subset of each update; bin i is grid cell first + i of width
    2^exponent. zeros: values of that subset that are exactly 0. integral: whether all of that subset are integers.
    """

    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    first: int = 0
    exponent: int = SMALLEST_EXPONENT
    zeros: int = 0
    integral: bool = True

    def update(self, x: np.ndarray, most: int = SAMPLED) -> None:
        """Add a tensor of any shape and numeric dtype; at most `most` of its values to the histogram."""
        values = np.asarray(x).reshape(-1)
        if values.dtype.kind not in "fiu":  # bool and bfloat16 lack some of the arithmetic below
            values = values.astype(np.float32)
        if not values.size:
            return
        low, high = values.min(), values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            self.update(values[np.isfinite(values)], most)
            return
        self.count += values.size
        self._add_extremes(float(low), float(high))
        self._add_counts(_subset(values, most))

    def _add_extremes(self, low: float, high: float) -> None:
        """Widen the range, and with it the bins as far as needed."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        exponent = max(self.exponent, _exponent(self.low, self.high))
        first = _cell(self.low, exponent)
        if (exponent, first) == (self.exponent, self.first):
            return
        cells = np.flatnonzero(self.counts)
        # Shifts beyond 63 bits are undefined in NumPy, and 63 already leaves only the sign, as more would.
        moved = ((cells + self.first) >> min(exponent - self.exponent, 63)) - first
        merged = np.zeros(BINS, np.int64)
        np.add.at(merged, moved, self.counts[cells])
        self.counts, self.first, self.exponent = merged, first, exponent

    def _add_counts(self, values: np.ndarray) -> None:
        cells = np.floor(values.astype(np.float64) * 2.0**-self.exponent)
        self.counts += np.bincount(cells.astype(np.int64) - self.first, minlength=BINS)
        self.zeros += values.size - int(np.count_nonzero(values))
        self.integral = self.integral and bool((values == np.floor(values)).all())

    @property
    def is_blank(self) -> bool:
        """Whether no value other than 0 was seen."""
        return not self.count or self.low == self.high == 0

    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Counts (n,) and float64 edges (n + 1,) of the bins from the lowest value's to the highest's; n <= BINS."""
        if not self.count:
            return np.zeros(0, np.int64), np.zeros(1)
        used = _cell(self.high, self.exponent) - self.first + 1
        return self.counts[:used].copy(), np.ldexp(np.arange(self.first, self.first + used + 1.0), self.exponent)


def _cell(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def _exponent(low: float, high: float) -> int:
    """The smallest e for which [low, high] touches at most BINS cells of width 2^e."""
    magnitude = max(abs(low), abs(high))
    exponent = max(math.frexp(magnitude)[1] - FINEST, SMALLEST_EXPONENT) if magnitude else SMALLEST_EXPONENT
    while _cell(high, exponent) - _cell(low, exponent) >= BINS:
        exponent += 1
    return exponent


def _subset(values: np.ndarray, most: int) -> np.ndarray:
    """At most `most` values at a constant stride.

    The stride shares no factor with the size, hence none with any axis: with one it would visit only some channels.
    """
    stride = -(-values.size // most)
    while math.gcd(stride, values.size) > 1:
        stride += 1
    return values[::stride]
