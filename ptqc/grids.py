"""Uniform grids for weights, and the search for their scales.

A weight is scale · q with integer q. Grids of 4 bits and more hold zero: q = −2^(b−1) … 2^(b−1)−1. Those of 2 and 3
bits are symmetric and skip zero, q = ±1, ±3, …: on Gaussian weights 9.24 against 8.26 dB at 2 bits and 14.26 against
13.91 at 3 (measured); both fit int8, so the kernel does not see the difference.
"""

import numpy as np

from ptqc.formats import Format

SYMMETRIC_UP_TO = 3
# Clips tried first, as fractions of a row's largest magnitude, then around the best.
COARSE = 2.0 ** -np.arange(0, 5, 0.25, dtype=np.float32)
FINE = 2.0 ** np.linspace(-0.2, 0.2, 11, dtype=np.float32)
# Columns looked at when searching a clip: those that a clip may cost most, and an even share of the rest.
LARGEST_COLUMNS = 64
SEARCHED_COLUMNS = 512
FLOAT16_RANGE = (2.0**-14, 2.0**15)


def is_symmetric(form: Format) -> bool:
    """Whether the grid skips zero."""
    return form.bits <= SYMMETRIC_UP_TO


def code_of(index: np.ndarray, form: Format) -> np.ndarray:
    """Codes q of grid indices 0 … 2^b − 1."""
    return 2 * index - (2**form.bits - 1) if is_symmetric(form) else index + form.low


def index_of(code: np.ndarray, form: Format) -> np.ndarray:
    """Inverse of `code_of`: what is stored in b bits."""
    return (code + (2**form.bits - 1)) // 2 if is_symmetric(form) else code - form.low


def nearest(ratio: np.ndarray, form: Format) -> np.ndarray:
    """The grid's nearest code (as float) to weight / scale."""
    if is_symmetric(form):
        return np.asarray(np.clip(2 * np.floor(ratio * 0.5) + 1, 2 * form.low + 1, 2 * form.high + 1))
    return np.asarray(np.clip(np.rint(ratio), form.low, form.high))


def largest_code(form: Format) -> float:
    """The reach of the grid in units of the scale, on the side that reaches less by half a step."""
    return 2.0**form.bits if is_symmetric(form) else form.high + 0.5


def search_scale(rows: np.ndarray, importance: np.ndarray, form: Format) -> np.ndarray:
    """Scale per row that minimizes the importance-weighted squared error of nearest rounding.

    rows (…, R, d); importance (…, 1, d) or broadcastable, not negative. Returns (…, R) float32.
    """
    largest = np.abs(rows).max(-1)
    rows, importance = _searched(rows, importance)
    reach = np.maximum(largest / largest_code(form), 1e-30)
    scale, loss = reach, np.full(largest.shape, np.inf, np.float32)
    for clips in (COARSE, FINE):
        start = scale
        for clip in clips:
            tried = start * clip
            error = rows - tried[..., None] * nearest(rows / tried[..., None], form)
            found = (error * error * importance).sum(-1)
            better = found < loss
            loss, scale = np.where(better, found, loss), np.where(better, tried, scale)
    return storable(scale, largest)


def _searched(rows: np.ndarray, importance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns that stand for all columns of rows (…, R, d), with the importance of what they stand for."""
    stride = rows.shape[-1] // SEARCHED_COLUMNS
    if stride < 2:
        return rows, importance
    importance = np.broadcast_to(importance, rows.shape)
    power = rows * rows * importance
    places = np.argpartition(power, -LARGEST_COLUMNS, axis=-1)[..., -LARGEST_COLUMNS:]
    least = np.take_along_axis(power, places, -1).min(-1, keepdims=True)
    rest = np.where(power[..., ::stride] < least, importance[..., ::stride] * stride, 0)
    return (
        np.concatenate([np.take_along_axis(rows, places, -1), rows[..., ::stride]], -1),
        np.concatenate([np.take_along_axis(importance, places, -1), rest], -1),
    )


def storable(scale: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Scales as they are stored: rounded to float16 where that loses nothing, rows of zeros given a usable scale."""
    scale = np.asarray(scale, np.float32)
    usable = (magnitude > 0) & (scale > 0)
    fallback = np.float32(scale[usable].min() if usable.any() else 1.0)
    scale = np.where(usable, scale, fallback)
    if scale.min() >= FLOAT16_RANGE[0] and scale.max() <= FLOAT16_RANGE[1]:
        scale = scale.astype(np.float16).astype(np.float32)
    return scale


def round_nearest(weight: np.ndarray, axis: int, form: Format) -> tuple[np.ndarray, np.ndarray]:
    """Codes (int8, the weight's shape) and scale per index of `axis`, without looking at data."""
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    scale = search_scale(rows, np.ones((1, rows.shape[1]), np.float32), form)
    shape = [1] * weight.ndim
    shape[axis] = -1
    return nearest(weight / scale.reshape(shape), form).astype(np.int8), scale
