"""The search for the scales of a weight, and how scales are stored: s = q² · u, q in a byte and u a power of two.

Scales of one weight often differ by a factor of 100, and of channels that are never active by far more. Squares of 1
to 255 span 2¹⁶, and those that are at least a sixteenth of the largest are at most 4 % apart. A coarse search finds u,
and a fine one looks at no other scales, so that weights are rounded to the grid that the file gives them. Long rows
then lose next to nothing. Of short rows in many bits every scale leaves another error; solvers try those nearby
(`gptq.round_best`).
"""

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
LARGEST_ROOT = 255
# Places of other scales that a solver tries, from that of the search.
NEARBY = (-2, -1, 1, 2)
# Units of scales whose squares times them are normal numbers of float32.
UNITS = (2.0**-120, 2.0**100)


def search(
    rows: np.ndarray, importance: np.ndarray, nearest: Callable[[np.ndarray], np.ndarray], largest_level: float
) -> np.ndarray:
    """Scale per row that minimizes the importance-weighted squared error of nearest rounding.

    rows (…, R, d); importance (…, 1, d) or broadcastable, not negative. nearest: the levels nearest to weight / scale.
    largest_level: the reach of the levels in units of the scale. Returns (…, R) float32, as `storable` gives them.
    """
    count, largest = rows.shape[-2], np.abs(rows).max(-1)
    pieces = [slice(None)] if rows.size <= SEARCHED_NUMBERS else list(parts(count, -(-rows.size // SEARCHED_NUMBERS)))
    by_row = importance.ndim > 1 and importance.shape[-2] == count

    def best(start: np.ndarray, clips: np.ndarray, unit: float | None = None) -> np.ndarray:
        """Of each row's scale times the clips, that of least error."""
        tried = start * clips.reshape(-1, *[1] * start.ndim)
        weights = (importance[..., piece, :] if by_row else importance for piece in pieces)
        result = [
            _best(rows[..., piece, :], weight, nearest, tried[..., piece], unit)
            for piece, weight in zip(pieces, weights, strict=True)
        ]
        return np.concatenate(result, -1)

    scale = best(np.maximum(largest / largest_level, 1e-30), COARSE)
    unit = unit_of(scale.max(initial=0.0) * FINE[-1])
    return storable(best(scale, FINE, unit), largest, unit)


def parts(count: int, pieces: int) -> Iterator[slice]:
    """So many numbers in about so many stretches."""
    size = -(-count // pieces)
    return (slice(start, start + size) for start in range(0, count, size))


def _best(
    rows: np.ndarray,
    importance: np.ndarray,
    nearest: Callable[[np.ndarray], np.ndarray],
    scales: np.ndarray,
    unit: float | None,
) -> np.ndarray:
    """Of several scales (…, R) for each row, the one of least error. unit: with which they can be stored, if given."""
    rows, importance = _searched(rows, importance)
    best: np.ndarray = scales[0]
    loss = np.full(best.shape, np.inf, np.float32)
    for scale in scales:
        tried = scale if unit is None else rounded(scale, unit)
        error = rows - tried[..., None] * nearest(rows / tried[..., None])
        result = (error * error * importance).sum(-1)
        better = result < loss
        loss, best = np.where(better, result, loss), np.where(better, tried, best)
    return best


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


def unit_of(largest: float) -> float:
    """The smallest unit with which the largest scale of a weight can be stored; as it is stored, it has the same."""
    unit = 2.0 ** np.ceil(np.log2(np.float64(max(largest, 1e-45)) / (LARGEST_ROOT + 0.5) ** 2))
    return float(np.clip(unit, *UNITS))


def storable(scale: np.ndarray, magnitude: np.ndarray, unit: float | None = None) -> np.ndarray:
    """Scales of a whole weight as they are stored; rows of zeros are given the smallest.

    Not every grid has a zero, so that what those rows become is their scale times some level. unit: by default the
    smallest that will do.
    """
    scale = np.asarray(scale, np.float32)
    usable = (magnitude > 0) & (scale > 0)
    if not usable.any():
        return np.full_like(scale, unit_of(1.0))
    scale = np.where(usable, scale, 0)
    return rounded(scale, unit_of(scale.max()) if unit is None else unit)


def rounded(scale: np.ndarray, unit: float) -> np.ndarray:
    """The nearest squares times a unit."""
    root = np.clip(np.rint(np.sqrt(np.asarray(scale, np.float32) / np.float32(unit))), 1, LARGEST_ROOT)
    return np.asarray(root * root * np.float32(unit), np.float32)


def beside(scale: np.ndarray, unit: float, steps: int) -> np.ndarray:
    """Scales as they are stored, so many places from others of their unit."""
    root = np.rint(np.sqrt(scale / np.float32(unit))) + steps
    return np.asarray(np.square(np.clip(root, 1, LARGEST_ROOT)) * np.float32(unit), np.float32)


def raised(scale: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Scales of a whole weight, those that are too small raised to powers of two, which all others may be.

    They are stored like the others where they are not larger than these.
    """
    unit = unit_in(scale)
    root = 2.0 ** np.ceil(np.log2(np.maximum(least, unit).astype(np.float64) / unit) / 2)
    higher = np.where(root <= LARGEST_ROOT, np.asarray(root * root * unit, np.float32), powers_beside(least)[1])
    return np.where(scale < least, higher, scale).astype(np.float32)


def roots(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """q (uint8) and u (float32, a scalar) of scales as they are stored; None of others."""
    least = unit_of(scale.max(initial=0.0))
    for unit in (least, 2 * least):  # powers of two are squares with one of them
        if np.array_equal(rounded(scale, unit), scale):
            return np.rint(np.sqrt(scale / np.float32(unit))).astype(np.uint8), np.array(unit, np.float32)
    return None


def unit_in(scale: np.ndarray) -> float:
    """The unit that the scales of a whole weight have, or can be given."""
    result = roots(scale)
    return unit_of(scale.max()) if result is None else float(result[1])


def narrow(scale: np.ndarray) -> np.ndarray:
    """float16 where that is exact, else float32."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scale) else scale.astype(np.float32)
