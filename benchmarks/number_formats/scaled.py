"""Formats that are levels times scales, of channels or of blocks of neighbouring weights of a channel."""

from dataclasses import dataclass

import numpy as np

from number_formats.base import NumberFormat, Rows, Stored
from number_formats.levels import LevelSet
from number_formats.scaling import ScaleRule, SearchedScale

SEARCHED = SearchedScale()


@dataclass(frozen=True)
class ScaledFormat(NumberFormat):
    """levels times a scale for every `block` weights of a channel, or for all of it where there is no block."""

    name: str
    levels: LevelSet
    block: int | None = None
    rule: ScaleRule = SEARCHED

    @property
    def is_blocked(self) -> bool:
        return self.block is not None

    def store(self, rows: Rows) -> Stored:
        width = self.block or rows.width
        blocks, importance = _blocks(rows.values, width), _blocks(rows.importance, width)
        scale = self.rule.scale(blocks, importance, self.levels)[..., None]
        values = (self.levels.nearest(blocks / scale) * scale).reshape(len(blocks), -1)[:, : rows.width]
        bits = rows.size * self.levels.bits + rows.count * (blocks.shape[1] * self.rule.bits + self.rule.row_bits)
        return Stored(np.asarray(values, np.float32), bits)


def _blocks(rows: np.ndarray, width: int) -> np.ndarray:
    """(R, d) as (R, blocks, width), zeros behind the last number."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % width)))
    return padded.reshape(len(rows), -1, width)
