"""Whether whole numbers alone give the codes of a layer: shown for every sum that its weights can give.

The reference is clip(rint(float32(float32(sum) · factor)) + zero): the sum and the product are rounded to 24 digits
before the last rounding. In whole numbers the product of the sum and the 24 digits of the factor is rounded once.
Both grow with the sum, so that they are equal where they pass from each code to the next at the same sum.
"""

from collections.abc import Callable

import numpy as np

CODES = 256
MANTISSA_BITS = 23
LARGEST_SHIFT = 62


def is_exact(factor: np.ndarray, least: np.ndarray, most: np.ndarray, zero: int) -> bool:
    """Whether both give the same codes for all sums from `least` to `most` of each channel (C,). factor: (C,)."""
    factor = np.broadcast_to(np.asarray(factor, np.float32), least.shape)
    if not ((factor > 0) & np.isfinite(factor)).all() or (least < -(2**31)).any() or (most >= 2**31).any():
        return False
    shift = 150 - (factor.view(np.uint32) >> MANTISSA_BITS).astype(np.int64)
    if ((shift < 1) | (factor.view(np.uint32) >> MANTISSA_BITS == 0)).any():
        return False
    bounds = np.arange(-zero, CODES - zero, dtype=np.int64)[:, None]  # a code is at least this many steps
    one = _first(bounds, least, most, lambda sums: reference(sums, factor))
    other = _first(bounds, least, most, lambda sums: in_whole_numbers(sums, factor))
    return bool(np.array_equal(one, other))


def reference(sums: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Steps of sums as they are defined, int64."""
    return np.asarray(np.rint(sums.astype(np.float32) * factor), np.int64)


def in_whole_numbers(sums: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Steps of sums as C computes them without a floating-point unit."""
    bits = np.asarray(factor, np.float32).view(np.uint32).astype(np.int64)
    shift = np.minimum(150 - (bits >> MANTISSA_BITS), LARGEST_SHIFT + 1)
    product = np.abs(sums.astype(np.int64)) * ((bits & 0x7FFFFF) | 0x800000)
    whole = product >> shift
    rest, half = product & ((np.int64(1) << shift) - 1), np.int64(1) << (shift - 1)
    whole = whole + ((rest > half) | ((rest == half) & (whole & 1 == 1)))
    return np.asarray(np.where(shift > LARGEST_SHIFT, 0, np.sign(sums) * whole))


def _first(
    bounds: np.ndarray, least: np.ndarray, most: np.ndarray, steps: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """By bound and channel, the first sum that gives at least so many steps; most + 1 where none does."""
    low = np.broadcast_to(least.astype(np.int64), (len(bounds), len(least))).copy()
    high = np.broadcast_to(most.astype(np.int64) + 1, low.shape).copy()
    while (low < high).any():
        middle = (low + high) >> 1
        reaches = steps(middle) >= bounds
        high = np.where(reaches & (low < high), middle, high)
        low = np.where(~reaches & (low < high), middle + 1, low)
    return low
