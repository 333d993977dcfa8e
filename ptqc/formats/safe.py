"""8-bit weights that no x64 processor saturates: codes within ±127 of which no two neighbours exceed ±128 together.

ONNX Runtime adds two neighbouring products of an unsigned code and a weight in 16 bits where there is no VNNI, and
255 · 128 is the most that fits. Neighbours are inputs of one tap (`along_inputs`), in the order in which it multiplies.
Few pairs of weights are both large, so that scales hardly grow: on the layers of four networks such codes are 1.0 to
1.9 dB below free ones, and 4.1 to 4.9 dB above those of 7 bits (measured).
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from ptqc.formats import scales
from ptqc.formats.base import Grid, Scaled
from ptqc.formats.uniform import WIDEST, Integer

PAIR, LARGEST, LARGEST_SUM = 2, 127, 128
# Scales that are tried, from what free codes get.
WIDER = 2.0 ** np.arange(0, 1.01, 0.125, dtype=np.float32)


class Safe(Integer):
    """safe8."""

    family = "safe"
    mark: ClassVar[str] = "n"
    by_default: ClassVar[bool] = False  # where 8 bits are allowed
    along_inputs: ClassVar[bool] = True
    in_pairs: ClassVar[bool] = True

    @classmethod
    def members(cls) -> Iterable["Safe"]:
        """The only one."""
        return [cls(WIDEST)]

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """It, where 8 bits are asked for."""
        return [cls(WIDEST)] if WIDEST in widths else []

    @property
    def may_saturate(self) -> bool:
        """Never."""
        return False

    def fits(self, width: int, channels: int) -> bool:  # noqa: ARG002
        """Whether inputs are whole pairs."""
        return width % PAIR == 0

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each pair is rounded for itself."""
        free = super().grid(rows, importance, keeps_sign=keeps_sign)
        lowest, unit = 0.0 if keeps_sign else -np.inf, scales.unit_in(free.scale)
        grid = Grid(free.scale, PAIR, lambda ratio, metric: nearest_pairs(np.maximum(ratio, lowest), metric))
        return grid.with_scales([scales.rounded(free.scale * wider, unit) for wider in WIDER], rows, importance)


def nearest_pairs(ratio: np.ndarray, metric: np.ndarray | None) -> np.ndarray:
    """The pairs of codes nearest to weight / scale (…, R, 2), by (r − q) M (r − q)ᵀ; metric M: (…, 2, 2)."""
    codes = np.clip(np.rint(ratio), -LARGEST, LARGEST)
    large = np.abs(codes.sum(-1)) > LARGEST_SUM  # then both have one sign
    if not large.any():
        return np.asarray(codes)
    first, second = ratio[large].T
    limit = np.sign(codes[large].sum(-1)) * LARGEST_SUM
    if metric is None:
        place = (first - second + limit) / 2
    else:
        whole = np.broadcast_to(metric[..., None, :, :], (*large.shape, PAIR, PAIR))[large]
        a, b, c = whole[:, 0, 0], whole[:, 0, 1], whole[:, 1, 1]
        total = np.maximum(a - 2 * b + c, np.finfo(np.float32).tiny)
        place = (a * first - b * (first - second + limit) - c * (second - limit)) / total
    least, most = np.minimum(np.sign(limit), limit - np.sign(limit)), np.maximum(np.sign(limit), limit - np.sign(limit))
    codes[large, 0] = np.clip(np.rint(place), least, most)
    codes[large, 1] = limit - codes[large, 0]
    return np.asarray(codes)


def saturates(codes: np.ndarray, axis: int) -> bool:
    """Whether pairs of codes, of a layer's weight with its channels along an axis, can exceed 16 bits."""
    rows = np.moveaxis(codes, 1, -1) if codes.ndim > PAIR else np.moveaxis(codes, axis, 0)
    rows = rows.reshape(len(rows), -1).astype(np.int16)
    pairs = np.pad(rows, ((0, 0), (0, rows.shape[1] % PAIR))).reshape(len(rows), -1, PAIR)
    sums = (np.maximum(pairs, 0).sum(-1), np.minimum(pairs, 0).sum(-1))
    return any(int(np.abs(one).max(initial=0)) > LARGEST_SUM for one in sums)
