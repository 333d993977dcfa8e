"""The search for the scales of a weight, and how scales are stored."""

from collections.abc import Callable, Iterator

import numpy as np

# Where rows are clipped, as fractions of their largest magnitude: tried first, and then around the best.
COARSE = 2.0 ** -np.arange(0, 5, 0.25, dtype=np.float32)
FINE = 2.0 ** np.linspace(-0.2, 0.2, 11, dtype=np.float32)
# Columns that the search looks at: those that a clip may cost most, and an even share of the rest.
LARGEST_COLUMNS = 64
SEARCHED_COLUMNS = 512
# Numbers that the search looks at together: of more, some rows at a time, which each have a scale of their own.
SEARCHED_NUMBERS = 2**22
FLOAT16_RANGE = (2.0**-14, 2.0**15)


def search(
    rows: np.ndarray, importance: np.ndarray, nearest: Callable[[np.ndarray], np.ndarray], largest_level: float
) -> np.ndarray:
    """Scale per row that minimizes the importance-weighted squared error of nearest rounding.

    rows (…, R, d); importance (…, 1, d) or broadcastable, not negative. nearest: the levels nearest to weight / scale.
    largest_level: the reach of the levels in units of the scale. Returns (…, R) float32.
    """
    count = rows.shape[-2]
    pieces = [slice(None)] if rows.size <= SEARCHED_NUMBERS else list(parts(count, -(-rows.size // SEARCHED_NUMBERS)))
    by_row = importance.ndim > 1 and importance.shape[-2] == count
    found = [
        _search(rows[..., piece, :], importance[..., piece, :] if by_row else importance, nearest, largest_level)
        for piece in pieces
    ]
    scale, largest = (np.concatenate(arrays, -1) for arrays in zip(*found, strict=True))
    return storable(scale, largest)


def parts(count: int, pieces: int) -> Iterator[slice]:
    """So many numbers in about so many stretches."""
    size = -(-count // pieces)
    return (slice(start, start + size) for start in range(0, count, size))


def _search(
    rows: np.ndarray, importance: np.ndarray, nearest: Callable[[np.ndarray], np.ndarray], largest_level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The scales of some rows, and their largest magnitudes."""
    largest = np.abs(rows).max(-1)
    rows, importance = _searched(rows, importance)
    reach = np.maximum(largest / largest_level, 1e-30)
    scale, loss = reach, np.full(largest.shape, np.inf, np.float32)
    for clips in (COARSE, FINE):
        start = scale
        for clip in clips:
            tried = start * clip
            error = rows - tried[..., None] * nearest(rows / tried[..., None])
            found = (error * error * importance).sum(-1)
            better = found < loss
            loss, scale = np.where(better, found, loss), np.where(better, tried, scale)
    return scale, largest


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


def powers_beside(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest power of two that is not above each scale, and the next one; float32."""
    scale = np.asarray(scale, np.float32)
    low = np.ldexp(np.float32(1), np.frexp(scale)[1] - 1).astype(np.float32)
    return low, low * np.float32(2)


def storable(scale: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Scales as they are stored: rounded to float16 where that loses nothing, rows of zeros given a small scale.

    Not every grid has a zero, so that what those rows become is their scale times some level.
    """
    scale = np.asarray(scale, np.float32)
    usable = (magnitude > 0) & (scale > 0)
    fallback = np.float32(min(scale[usable].min(initial=1.0), FLOAT16_RANGE[0]))
    scale = np.where(usable, scale, fallback)
    if scale.min() >= FLOAT16_RANGE[0] and scale.max() <= FLOAT16_RANGE[1]:
        scale = scale.astype(np.float16).astype(np.float32)
    return scale


def narrow(scale: np.ndarray) -> np.ndarray:
    """float16 where that is exact, else float32."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scale) else scale.astype(np.float32)
