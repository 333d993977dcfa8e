"""How far the outputs of one quantized network may differ between two right executions.

Single steps of one code grow through the layers when sums are ordered differently, in deep networks until two right
executions differ about as much as quantization itself changes the outputs: each is as far from the float outputs, and
from the other at most the sum of both. Allowed: twice what quantization changes, within bounds.
"""

import math
from collections.abc import Sequence

import numpy as np

SUM_OF_BOTH = 2.0
BOUNDS = (0.01, 0.7)


def relative(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """Root of the summed squared differences over that of the summed squares.

    Infinities and NaN count as equal to themselves, and as infinitely far from anything else.
    """
    error = sum(_squared_distance(a, b) for a, b in zip(wanted, found, strict=True))
    power = sum(float(np.square(a[np.isfinite(a)], dtype=np.float64).sum()) for a in wanted)
    return float(np.sqrt(error / (power or 1.0)))


def relative_to_float(real: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The same of another network than the float model's, whose values count where they are finite."""
    pairs = [
        (a[np.isfinite(a)], b[np.isfinite(a)]) if a.shape == b.shape else (a, b)
        for a, b in zip(real, found, strict=True)
    ]
    return relative([a for a, _ in pairs], [b for _, b in pairs])


def _squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    first, second = a[differ].astype(np.float64), b[differ].astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return math.inf
    return float(np.square(first - second).sum())


def alike(wanted: np.ndarray, found: np.ndarray) -> bool:
    """Whether two outputs are of one type and shape; strings may differ in length."""
    is_text = wanted.dtype.kind == found.dtype.kind == "U"
    return wanted.shape == found.shape and (is_text or wanted.dtype == found.dtype)


def allowed(quantization: float) -> float:
    """The relative difference that is allowed where quantization itself makes one of this size."""
    return float(np.clip(SUM_OF_BOTH * quantization, *BOUNDS))
