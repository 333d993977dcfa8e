"""The levels that a number in units of its scale is rounded to: even, floating, or listed."""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Protocol

import numpy as np

from ptqc.formats import Integer


class LevelSet(Protocol):
    """Levels. bits: of one index. largest: the largest magnitude, from where a search for scales sets out."""

    @property
    def bits(self) -> float: ...

    @property
    def largest(self) -> float: ...

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        """The nearest level to each number."""


@dataclass(frozen=True)
class EvenLevels:
    """The grids of ptqc, which below 4 bits hold no zero."""

    bits: int

    @property
    def largest(self) -> float:
        return Integer(self.bits).largest_level

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        return Integer(self.bits).nearest(ratio)


@dataclass(frozen=True)
class Mantissas:
    """Sign and magnitude: whole numbers within ±(2^(b − 1) − 1)."""

    bits: int

    @property
    def largest(self) -> float:
        return 2.0 ** (self.bits - 1) - 1

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(ratio), -self.largest, self.largest)


@dataclass(frozen=True)
class FloatLevels:
    """A float of few bits with subnormals, halves to even, what is too large cut off at `largest`."""

    exponent: int
    mantissa: int
    largest: float

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        smallest = 2 - 2 ** (self.exponent - 1)  # exponent of the smallest normal number
        exponent = np.maximum(np.frexp(ratio)[1] - 1, smallest)
        rounded = np.ldexp(np.rint(np.ldexp(ratio, self.mantissa - exponent)), exponent - self.mantissa)
        return np.clip(rounded, -self.largest, self.largest)

    def __str__(self) -> str:
        return f"E{self.exponent}M{self.mantissa}"


@dataclass(frozen=True)
class ListedLevels:
    """Any levels, in ascending order."""

    values: tuple[float, ...]
    bits: float

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.values, np.float32)

    @property
    def largest(self) -> float:
        return float(np.abs(self._table).max())

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        return self._table[np.searchsorted((self._table[1:] + self._table[:-1]) / 2, ratio)]


# OCP Microscaling Formats 1.0: E4M3 has no infinity and one code that is no number; those of 6 and 4 bits have neither.
# E3M4 is as IEEE 754 would have it, with infinities.
E4M3, E5M2, E3M4 = FloatLevels(4, 3, 448), FloatLevels(5, 2, 57344), FloatLevels(3, 4, 15.5)
E3M2, E2M3 = FloatLevels(3, 2, 28), FloatLevels(2, 3, 7.5)
E2M2, E2M4 = FloatLevels(2, 2, 7), FloatLevels(2, 4, 7.75)
E2M1 = FloatLevels(2, 1, 6)

# Five of three levels are 243 < 2⁸ combinations.
TERNARY = ListedLevels((-1, 0, 1), 8 / 5)


def powers_of_two(bits: int) -> ListedLevels:
    """Zero, and ± 2^-k: sign and exponent without mantissa (LUQ: Chmiel et al. 2021, arXiv 2112.10769)."""
    magnitudes = [2.0**-k for k in range(2 ** (bits - 1) - 1)]
    return ListedLevels(tuple(sorted({0.0, *magnitudes, *(-m for m in magnitudes)})), bits)


def dynamic(bits: int) -> ListedLevels:
    """Dynamic tree quantization (Dettmers et al. 2022, arXiv 2110.02861).

    Behind the sign, zeros up to the first one count the decimal exponent, and what is left cuts [0.1, 1] evenly.
    """
    values = [0.0, 1.0]
    for exponent in range(bits - 1):
        edges = np.linspace(0.1, 1, 2**exponent + 1)
        magnitudes = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - bits + 2)
        values += [*magnitudes.tolist(), *(-magnitudes).tolist()]
    return ListedLevels(tuple(sorted(values)), bits)


def normal_float() -> ListedLevels:
    """NF4: quantiles of a normal distribution, and zero (Dettmers et al. 2023, arXiv 2305.14314, appendix E)."""
    edge = (1 - 1 / 32 + 1 - 1 / 30) / 2
    quantile = NormalDist().inv_cdf
    above = [quantile(p) for p in np.linspace(edge, 0.5, 9)[:-1]]
    below = [-quantile(p) for p in np.linspace(edge, 0.5, 8)[:-1]]
    largest = max(above)
    return ListedLevels(tuple(sorted(x / largest for x in [*above, 0.0, *below])), 4)
