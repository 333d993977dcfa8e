"""Codebooks: the 2^b int8 codes that fit a weight best, in place of evenly spaced ones.

A weight is scale · q, with a scale per channel as on uniform grids, and q from a short sorted list that the whole
weight shares. The file holds indices into the list; the kernel sees int8 codes, so it costs nothing at run time. The
levels are those of Lloyd (1982, Least squares quantization in PCM) under the importance of each column. Against the
best uniform grid they gain most where weights are skewed or have heavy tails.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.grids import storable

# Codes of 7 bits: they cannot saturate the 16-bit sums of processors without VNNI.
REACH = 63
ITERATIONS = 24
# Elements that the levels are fitted on, at most; a share of each row.
FITTED_ELEMENTS = 200_000
# Where the levels start: evenly between these quantiles.
QUANTILES = (0.005, 0.995)


@dataclass(frozen=True, eq=False)
class Codebook:
    """levels: sorted whole numbers, float32."""

    levels: np.ndarray

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        """The level nearest to weight / scale."""
        return np.asarray(self.levels[np.searchsorted(_between(self.levels), ratio)])


def fit(rows: np.ndarray, importance: np.ndarray, bits: int) -> tuple[Codebook, np.ndarray]:
    """Codebook of rows (…, R, d) and the scale of each row (…, R), by alternating both with nearest rounding.

    importance: (…, 1, d) or broadcastable, not negative.
    """
    weight = np.broadcast_to(importance, rows.shape)
    stride = max(1, rows.size // FITTED_ELEMENTS)
    x, w = (a.reshape(-1, a.shape[-1])[:, : a.shape[-1] // stride * stride : stride] for a in (rows, weight))
    x, w = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(w, np.float32)
    power = (w * x * x).sum(-1)
    scale = np.sqrt(power / np.maximum(w.sum(-1), 1e-30))
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    levels = _start(x / scale[:, None], power > 0, bits)
    for _ in range(ITERATIONS):
        index = np.searchsorted(_between(levels), x / scale[:, None])
        levels = _centres(levels, index, x, w, scale)
        scale = _scale(levels[index], x, w, scale)
    stretch = REACH / max(float(np.abs(levels).max()), 1e-30)
    scale = np.asarray(scale / stretch, np.float32).reshape(rows.shape[:-1])
    return Codebook(np.unique(np.rint(levels * stretch)).astype(np.float32)), storable(scale, np.abs(rows).max(-1))


def round_nearest(weight: np.ndarray, axis: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes (int8, the weight's shape) and scale per index of `axis`, without looking at data."""
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)
    book, scale = fit(rows, np.ones((1, rows.shape[1]), np.float32), bits)
    shape = [1] * weight.ndim
    shape[axis] = -1
    return book.nearest(weight / scale.reshape(shape)).astype(np.int8), scale


def indices(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is stored: (index of every code, the codes that occur, int8 and sorted)."""
    levels = np.unique(codes)
    return np.searchsorted(levels, codes).astype(np.uint8), levels.astype(np.int8)


def _between(levels: np.ndarray) -> np.ndarray:
    return np.asarray((levels[1:] + levels[:-1]) / 2)


def _start(ratio: np.ndarray, used: np.ndarray, bits: int) -> np.ndarray:
    low, high = np.quantile(ratio[used], QUANTILES) if used.any() else (-1.0, 1.0)
    return np.linspace(low, max(high, low + 1e-6), 2**bits, dtype=np.float32)


def _centres(levels: np.ndarray, index: np.ndarray, x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Each level at the weighted mean of what rounds to it."""
    flat, count = index.ravel(), len(levels)
    weight = np.bincount(flat, (w * (scale * scale)[:, None]).ravel(), count)
    total = np.bincount(flat, (w * x * scale[:, None]).ravel(), count)
    moved = np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), levels)
    return np.sort(moved).astype(np.float32)


def _scale(codes: np.ndarray, x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The scale of each row that fits its codes best."""
    inner, norm = (w * x * codes).sum(-1), (w * codes * codes).sum(-1)
    usable = (inner > 0) & (norm > 0)
    return np.where(usable, inner / np.where(usable, norm, 1.0), scale).astype(np.float32)
