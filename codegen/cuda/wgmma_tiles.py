"""How a layer is cut for products of warpgroups (wgmma): tiles in which the weights are the left matrix.

A warpgroup takes 128 channels, in two matrices of 64 of which each of its four warps has 16 rows, and up to 256 pixels,
which are the columns of the right matrix. One instruction takes a part of a step of all of these pixels.
"""

from dataclasses import dataclass
from typing import Any

from ptqc.codegen.cuda.swap_ab import CHANNEL_TILES, PAIRS, first_channel_of
from ptqc.codegen.cuda.tiles import Tiles

# Channels of one instruction.
MATRIX_ROWS = 64


@dataclass(frozen=True)
class GroupTiles(Tiles):
    """Of a cut whose columns are a multiple of 128 and which shares no steps; row_tiles: of 16 pixels."""

    def fragment(self, column: Any, block: Any, register: Any) -> tuple[Any, Any]:
        """Blocks are the pairs of registers of one matrix, then of the other; the registers of a pair are two rows."""
        return first_channel_of(column) + block // PAIRS * CHANNEL_TILES + register, block % PAIRS
