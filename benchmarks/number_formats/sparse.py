"""Formats in which some weights are zero and not stored: which ones, and the codes of the others."""

from dataclasses import dataclass
from math import ceil, comb, log2

import numpy as np

from number_formats.base import SCALE_BITS, NumberFormat, Rows, Stored
from number_formats.levels import EvenLevels
from number_formats.scaling import SearchedScale


@dataclass(frozen=True)
class SparseFormat(NumberFormat):
    """The `nonzeros` of `of` neighbouring weights whose loss would cost most are even codes, the others zero.

    Neighbours are inputs of one tap, since hardware multiplies tap by tap. Which ones are kept is an index among all
    combinations. Of more weights than a channel has (`of` 0): `nonzeros` percent of the whole weight, and a bit for
    each.
    """

    name: str
    bits: int
    nonzeros: int
    of: int = 0

    def fits(self, rows: Rows) -> bool:
        """Whether a channel has so many inputs."""
        return rows.width >= self.of * rows.taps

    def store(self, rows: Rows) -> Stored:
        mask = self._mask(np.square(rows.values) * rows.importance, rows.taps)
        levels = EvenLevels(self.bits)
        values, importance = (np.where(mask, x, 0)[:, None] for x in (rows.values, rows.importance))
        scale = SearchedScale().scale(values, importance, levels)[:, 0, None]
        rounded = np.where(mask, levels.nearest(rows.values / scale) * scale, 0)
        bits = rows.size * (self._mask_bits + mask.mean() * self.bits) + rows.count * SCALE_BITS
        return Stored(np.asarray(rounded, np.float32), float(bits))

    @property
    def _mask_bits(self) -> float:
        return ceil(log2(comb(self.of, self.nonzeros))) / self.of if self.of else 1

    def _mask(self, power: np.ndarray, taps: int) -> np.ndarray:
        if not self.of:
            return power >= np.quantile(power, 1 - self.nonzeros / 100)
        by_tap = power.reshape(len(power), -1, taps).swapaxes(1, 2)
        groups = np.pad(by_tap, ((0, 0), (0, 0), (0, -by_tap.shape[-1] % self.of)), constant_values=-1)
        split = groups.reshape(*groups.shape[:2], -1, self.of)
        rank = np.argsort(np.argsort(-split, axis=-1, kind="stable"), axis=-1)
        mask = (rank < self.nonzeros).reshape(groups.shape)[..., : by_tap.shape[-1]]
        return np.asarray(mask.swapaxes(1, 2).reshape(power.shape))
