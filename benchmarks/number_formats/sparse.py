"""Formats in which some weights are zero and not stored: which ones, and the codes of the others."""

from dataclasses import dataclass
from math import ceil, comb, log2

import numpy as np

from number_formats.base import SCALE_BITS, NumberFormat, Rows, Stored
from number_formats.levels import EvenLevels
from number_formats.scaling import SearchedScale


@dataclass(frozen=True)
class SparseFormat(NumberFormat):
    """The `kept` of `of` neighbouring weights whose loss would cost most are even codes, the others zero.

    Which ones is an index among all combinations. Of more weights than a channel has (`of` 0): `kept` percent of
    the whole weight, and a bit for each.
    """

    name: str
    bits: int
    kept: int
    of: int = 0

    def store(self, rows: Rows) -> Stored:
        mask = self._mask(np.square(rows.values) * rows.importance)
        levels = EvenLevels(self.bits)
        values, importance = (np.where(mask, x, 0)[:, None] for x in (rows.values, rows.importance))
        scale = SearchedScale().scale(values, importance, levels)[:, 0, None]
        rounded = np.where(mask, levels.nearest(rows.values / scale) * scale, 0)
        bits = rows.size * (self._mask_bits + mask.mean() * self.bits) + rows.count * SCALE_BITS
        return Stored(np.asarray(rounded, np.float32), float(bits))

    @property
    def _mask_bits(self) -> float:
        return ceil(log2(comb(self.of, self.kept))) / self.of if self.of else 1

    def _mask(self, power: np.ndarray) -> np.ndarray:
        if not self.of:
            return power >= np.quantile(power, 1 - self.kept / 100)
        groups = np.pad(power, ((0, 0), (0, -power.shape[1] % self.of)), constant_values=-1)
        groups = groups.reshape(len(power), -1, self.of)
        rank = np.argsort(np.argsort(-groups, axis=-1, kind="stable"), axis=-1)
        return (rank < self.kept).reshape(len(power), -1)[:, : power.shape[1]]
