"""The levels of a codebook: the few int8 codes, or pairs of codes, that fit a weight best.

They are those of Lloyd (1982, Least squares quantization in PCM), for pairs of Linde, Buzo and Gray (1980), under the
importance of each column.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.formats.scales import storable

# Codes of 7 bits: they cannot saturate the 16-bit sums of processors without VNNI.
REACH = 63
# How many values a code can have.
CODES = 256
ITERATIONS = 24
# Levels are fitted to about so many points, taken as whole rows: the scale of a row needs all of its points.
FITTED_POINTS = 15_000
SCALE_ITERATIONS = 2
# Comparisons of points with levels that are made at a time, so that they stay in the processor's cache.
COMPARED = 2**18
# Rows that deviate by less than this share of the widest have no say in the levels.
DEAD = 1e-6
# Binary exponent of the largest weight below which all count as zeros: at it, a scale 2⁶ times smaller is still normal.
SMALLEST_EXPONENT = -110
# Quantiles of the weights between which single levels start.
QUANTILES = (0.005, 0.995)


@dataclass(frozen=True, eq=False)
class Levels:
    """values (K, size): whole numbers, float32; size is 1 or 2."""

    values: np.ndarray

    def nearest(self, ratio: np.ndarray, metric: np.ndarray | None = None) -> np.ndarray:
        """The levels nearest to weight / scale (…, R, size), by (r − q) M (r − q)ᵀ; metric M: (…, size, size)."""
        return np.asarray(self.values[_nearest(self.values, ratio, metric)])


def fit(rows: np.ndarray, importance: np.ndarray, bits: int, group: int) -> tuple[Levels, np.ndarray]:
    """At most 2^bits levels of rows (…, R, d), and a scale per row (…, R), by alternating both with nearest rounding.

    importance: (…, 1, d) or broadcastable, not negative; what has none has no say. group: numbers of a level; it
    divides d.
    """
    # Rows are looked at over a power of two: squares of what a dead layer has left would be no numbers of float32.
    exponent = int(np.frexp(np.abs(rows).max(initial=0.0))[1])
    every_x, every_w = _points(np.ldexp(rows, -exponent), importance, group)
    every_scale = _deviation(every_x, every_w)
    is_live = every_scale > DEAD * every_scale.max(initial=0.0)
    if exponent < SMALLEST_EXPONENT or not is_live.any():
        return Levels(np.zeros((1, group), np.float32)), np.ones(rows.shape[:-1], np.float32)
    x, w = every_x[is_live], every_w[is_live]
    stride = max(1, min(len(x), x[..., 0].size // FITTED_POINTS))
    x, w = x[::stride], w[::stride]
    first = scale = every_scale[is_live][::stride]
    levels = _start((x / scale[:, None, None])[(w > 0).all(-1)], bits)
    for _ in range(ITERATIONS):
        index = _index(levels, x, scale)
        levels = _centres(levels, index, x, w, scale)
        scale = _scale(levels[index], x, w, scale)
    scale = np.where(every_scale > 0, every_scale, 1.0).astype(np.float32) * np.median(scale / first)
    for _ in range(SCALE_ITERATIONS):
        scale = _scale(levels[_index(levels, every_x, scale)], every_x, every_w, scale)
    stretch = REACH / max(float(np.abs(levels).max()), 1e-30)
    levels = np.unique(np.rint(levels * stretch), axis=0).astype(np.float32)
    scale = np.ldexp(np.asarray(scale / stretch, np.float32), exponent).reshape(rows.shape[:-1])
    return Levels(levels), storable(scale, np.abs(rows).max(-1))


def indices(codes: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """What is stored: (uint8 index of every code or pair, in order, and the codes or pairs that occur, int8)."""
    places = CODES ** np.arange(group, dtype=np.int32)[::-1]
    digits = (codes.reshape(-1, group).astype(np.int32) + CODES // 2) @ places
    occurs = np.bincount(digits, minlength=CODES**group) > 0
    levels = np.flatnonzero(occurs)[:, None] // places % CODES - CODES // 2
    rank = (np.cumsum(occurs) - 1).astype(np.uint8)
    return rank[digits], levels.astype(np.int8)


def _points(rows: np.ndarray, importance: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and importances (rows, points, group)."""
    shape = (-1, rows.shape[-1] // group, group)
    weights = np.broadcast_to(importance, rows.shape)
    return np.asarray(rows, np.float32).reshape(shape), np.asarray(weights, np.float32).reshape(shape)


def _deviation(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weighted root mean square of each row (R, points, group), however small it is."""
    largest = np.abs(x).max((1, 2), initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    share = x / unit[:, None, None]
    power = (w * share * share).sum((1, 2)) / np.maximum(w.sum((1, 2)), 1e-30)
    return np.asarray(largest * np.sqrt(power), np.float32)


def _index(levels: np.ndarray, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Which level is nearest to each point of all rows, a few rows at a time."""
    share = max(1, COMPARED // (x.shape[1] * len(levels)))
    parts = [slice(start, start + share) for start in range(0, len(x), share)]
    return np.concatenate([_nearest(levels, x[p] / scale[p, None, None], None) for p in parts])


def _nearest(levels: np.ndarray, ratio: np.ndarray, metric: np.ndarray | None) -> np.ndarray:
    """argmin over q of −2 r M qᵀ + q M qᵀ. Single levels must be in ascending order."""
    if levels.shape[-1] == 1:
        return np.searchsorted((levels[1:, 0] + levels[:-1, 0]) / 2, ratio[..., 0])
    weighted = levels if metric is None else levels @ metric
    offset = (weighted * levels).sum(-1, keepdims=True) / -2
    ones = np.ones_like(ratio[..., :1])
    products = np.concatenate([ratio, ones], -1) @ np.concatenate([weighted, offset], -1).swapaxes(-1, -2)
    return np.asarray(products.argmax(-1))


def _start(flat: np.ndarray, bits: int) -> np.ndarray:
    """First levels: between even ones and quantiles for single codes, points of the data for pairs."""
    count, group = 2**bits, flat.shape[1]
    if not len(flat):
        flat = np.array([[-1.0], [1.0]], np.float32).repeat(group, 1)
    if group == 1:
        # The best density is between an even one and the data's (its cube root: Panter and Dite 1951).
        low, high = np.quantile(flat, QUANTILES)
        even = np.linspace(low, max(high, low + 1e-6), count)
        equal = np.quantile(flat, (np.arange(count) + 0.5) / count)
        return np.asarray((even + equal) / 2, np.float32)[:, None]
    chosen = np.random.default_rng(0).choice(len(flat), count, replace=len(flat) < count)
    return np.asarray(flat[chosen], np.float32)


def _centres(levels: np.ndarray, index: np.ndarray, x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Each level at the weighted mean of what rounds to it."""
    flat, count, moved = index.ravel(), len(levels), levels.copy()
    for i in range(levels.shape[1]):
        weight = np.bincount(flat, (w[..., i] * (scale * scale)[:, None]).ravel(), count)
        total = np.bincount(flat, (w[..., i] * x[..., i] * scale[:, None]).ravel(), count)
        moved[:, i] = np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), levels[:, i])
    return moved


def _scale(codes: np.ndarray, x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The scale of each row that fits its codes best; the one before where there is no positive one."""
    inner, norm = (w * x * codes).sum((1, 2)), (w * codes * codes).sum((1, 2))
    result = np.divide(inner, norm, out=np.zeros_like(inner), where=norm > 0)
    return np.where(result > 0, result, scale).astype(np.float32)
