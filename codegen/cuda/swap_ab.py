"""Products whose left matrix is the weights and whose right one has pixels for columns: which sums a lane has.

The 32 channels of a warp are two matrices of 16 rows, of which lane 4·g + t has rows g and g + 8: these are channels in
an order in which a lane's are four neighbours. Of each 8 pixels a lane has two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.products import TiledProduct
from ptqc.codegen.cuda.tiles import BLOCK, ROWS, SUMS, WARP_COLUMNS
from ptqc.codegen.kernels.epilogue import PACKED

# Matrices of 16 channels in a warp's tile, groups of four lanes, pairs of registers with the weights of one matrix.
CHANNEL_TILES, GROUPS, PAIRS = 2, 8, 2


def first_channel_of(group: Any) -> Any:
    """The first of the four channels of a warp's that the lanes of a group have; matrix i has 2·i and 2·i + 1."""
    return group * (WARP_COLUMNS // GROUPS)


@dataclass(frozen=True)
class LeftProduct(TiledProduct):
    """One kernel. Sums lie by blocks of 8 pixels, then by matrices."""

    @property
    def pixel_blocks(self) -> int:
        """Of 8 pixels, in a warp's tile."""
        return self.tiles.cut.row_tiles * ROWS // BLOCK

    def sum_numbers(self, block: int, matrix: int) -> list[int]:
        """The sums of a matrix of channels and a block of pixels."""
        first = (block * CHANNEL_TILES + matrix) * SUMS
        return list(range(first, first + SUMS))

    def first_channel(self, lane: Any) -> Any:
        """A lane has four channels."""
        return first_channel_of(T.truncdiv(lane, 4))

    def pixels(self, lane: Any) -> Iterator[tuple[Any, list[int]]]:
        """Channel 2·matrix + below of the four is sum 2·below + e of pixel e of two."""
        for block in range(self.pixel_blocks):
            for e in range(2):
                accumulators = [self.sum_numbers(block, at // 2)[at % 2 * 2 + e] for at in range(PACKED)]
                yield block * BLOCK + T.truncmod(lane, 4) * 2 + e, accumulators
