"""How far the outputs of one quantized network may differ between two right executions.

Single steps of one code grow through the layers when sums are ordered differently, in deep networks until two right
executions differ about as much as quantization itself changes the outputs: each is as far from the float outputs, and
from the other at most the sum of both. Allowed: twice what quantization changes, within bounds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

SUM_OF_BOTH = 2.0
BOUNDS = (0.01, 0.7)


@dataclass
class Difference:
    """Adds up how far outputs are from those that are wanted, sample by sample.

    Infinities and NaN count as equal to themselves, and as infinitely far from anything else.
    """

    error: float = 0.0
    power: float = 0.0

    def add(self, wanted: np.ndarray, array: np.ndarray) -> None:
        """Count an output of a sample."""
        self.error += _squared_distance(wanted, array)
        self.power += float(np.square(wanted[np.isfinite(wanted)], dtype=np.float64).sum())

    def add_to_float(self, real: np.ndarray, array: np.ndarray) -> None:
        """Count an output of a sample beside the float model's, whose values count where they are finite."""
        if real.shape == array.shape:
            finite = np.isfinite(real)
            real, array = real[finite], array[finite]
        self.add(real, array)

    @property
    def relative(self) -> float:
        """Root of the summed squared differences over that of the summed squares."""
        return float(np.sqrt(self.error / (self.power or 1.0)))


def relative(wanted: Iterable[np.ndarray], arrays: Iterable[np.ndarray]) -> float:
    """The `Difference` of several samples."""
    difference = Difference()
    for a, b in zip(wanted, arrays, strict=True):
        difference.add(a, b)
    return difference.relative


def relative_to_float(real: Iterable[np.ndarray], arrays: Iterable[np.ndarray]) -> float:
    """The `Difference` of several samples from the float model's outputs."""
    difference = Difference()
    for a, b in zip(real, arrays, strict=True):
        difference.add_to_float(a, b)
    return difference.relative


def _squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    first, second = a[differ].astype(np.float64), b[differ].astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return math.inf
    return float(np.square(first - second).sum())


def alike(wanted: np.ndarray, array: np.ndarray) -> bool:
    """Whether two outputs are of one type and shape; strings may differ in length."""
    is_text = wanted.dtype.kind == array.dtype.kind == "U"
    return wanted.shape == array.shape and (is_text or wanted.dtype == array.dtype)


def allowed(quantization: float) -> float:
    """The relative difference that is allowed where quantization itself makes one of this size."""
    return float(np.clip(SUM_OF_BOTH * quantization, *BOUNDS))
