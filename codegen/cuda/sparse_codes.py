"""Weights of which two of each four are zero, as sparse tensor cores take them: the other two, and their places.

Four neighbours are those of a sum in the order of a kernel, tap by tap (see `tiles.py`): as many inputs of one tap. A
place takes two bits, the lower place first; of fours with fewer weights that are not zero, any others are kept.

In mma.sp::ordered_metadata.m16n8k64 the sparse matrix is the left one: 16 channels at a time, of which a lane has two
registers of kept weights each for rows g and g + 8 (lane 4·g + t), as if these were a dense matrix of half the width.
Lane 4·g + t has the places of row g + 8·(t % 2) for the first or, from t = 2 on, the second 32 weights.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.codegen.cuda.packed_weights import LANES, Coding
from ptqc.codegen.cuda.swap_ab import CHANNEL_TILES, GROUPS
from ptqc.codegen.cuda.tiles import PART, Tiles

FOUR, NONZERO = 4, 2
# Weights whose places are in one word.
WORD = 32
# A valid pair of places, for what fills up the last step and panel.
FILLED = 0 | 1 << 2


@dataclass(frozen=True, eq=False)
class SparseCodes:
    """codes: int8 (outputs, half of the products of a sum). places: uint8 (outputs, fours): the lower, then the upper
    one in the two bits above."""

    codes: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray) -> "SparseCodes | None":
        """Of int8 codes (outputs, inputs, *kernel); None where more than two of four are not zero."""
        by_tap = np.moveaxis(codes, 1, -1)
        if by_tap.shape[-1] % FOUR:
            return None
        fours = by_tap.reshape(len(codes), -1, FOUR)
        if ((fours != 0).sum(-1) > NONZERO).any():
            return None
        chosen = np.sort(np.argsort(fours == 0, axis=-1, kind="stable")[..., :NONZERO], axis=-1)
        remaining = np.take_along_axis(fours, chosen, -1).reshape(len(codes), -1)
        return cls(remaining, (chosen[..., 0] | chosen[..., 1] << 2).astype(np.uint8))

    def coding(self) -> Coding:
        """How the kept codes are packed."""
        return Coding.of(self.codes, NONZERO * self.codes.shape[1])

    def pack(self, tiles: Tiles, coding: Coding) -> np.ndarray:
        """Bytes for every panel, step and warp: kept codes as lanes unpack them, then a lane's words of places."""
        codes = coding.pack(self.in_registers(tiles)).reshape(-1, tiles.unit_bytes - LANES * CHANNEL_TILES * 4)
        words = self.in_words(tiles).view(np.uint8).reshape(len(codes), -1)
        return np.concatenate([codes, words], axis=1).reshape(-1)

    def in_registers(self, tiles: Tiles) -> np.ndarray:
        """Kept codes (panels, steps, warps, lanes, matrices · registers, four codes)."""
        parts = (GROUPS, CHANNEL_TILES, 2, tiles.steps, 2, LANES // GROUPS, 4)
        remaining = _filled(self.codes, tiles, PART, 0).reshape(tiles.panels, tiles.warps[2], *parts)
        ordered = remaining.transpose(0, 5, 1, 2, 7, 3, 6, 4, 8)
        return np.ascontiguousarray(ordered).reshape(tiles.panels, tiles.steps, tiles.warps[2], LANES, -1, 4)

    def in_words(self, tiles: Tiles) -> np.ndarray:
        """Places, uint32 (panels, steps, warps, lanes, matrices)."""
        fours = _filled(self.places, tiles, PART // NONZERO, FILLED).astype(np.uint32)
        together = fours.reshape(len(fours), -1, WORD // FOUR) << np.arange(0, WORD, FOUR, dtype=np.uint32)
        words = np.bitwise_or.reduce(together, axis=-1)
        parts = (GROUPS, CHANNEL_TILES, 2, tiles.steps, 2)
        ordered = words.reshape(tiles.panels, tiles.warps[2], *parts).transpose(0, 5, 1, 2, 6, 4, 3)
        return np.ascontiguousarray(ordered).reshape(tiles.panels, tiles.steps, tiles.warps[2], LANES, CHANNEL_TILES)


def _filled(rows: np.ndarray, tiles: Tiles, step: int, value: int) -> np.ndarray:
    """Rows of all channels of all panels, of so many numbers for each step."""
    missing = (tiles.panels * tiles.cut.columns - len(rows), tiles.steps * step - rows.shape[1])
    return np.pad(rows, [(0, more) for more in missing], constant_values=value)
