"""How a product of codes is cut for tensor cores, and its weights in the order in which lanes read fragments.

Rows of the product are output pixels of all samples, columns output channels, and what is summed is the window: tap by
tap, 16 channels (one asynchronous copy) at a time. A block computes a tile; its warps take 32 × 32 of it each, by
mma.m16n8k32. A step of the loop takes 64 bytes of every row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ptqc.codegen.program.constants import IndexSource, Order
from ptqc.codegen.program.window import Window

STEP, CHUNK, WARP_TILE, LANES = 64, 16, 32, 32
# Blocks of columns of one instruction, and in one warp's tile.
BLOCK, BLOCKS = 8, 4


@dataclass(frozen=True)
class Tiles:
    """A layer of one group. rows, columns: of a block's tile. stages: steps that are in shared memory at a time."""

    window: Window
    outputs: int
    rows: int
    columns: int
    stages: int = 3

    @classmethod
    def of(cls, window: Window, outputs: int) -> "Tiles":
        """Small tiles where there is little to do, so that there are more blocks."""
        pixels = prod(window.output)
        rows = WARP_TILE if pixels <= WARP_TILE else 2 * WARP_TILE
        columns = WARP_TILE if outputs <= WARP_TILE else 2 * WARP_TILE
        return cls(window, outputs, rows, columns)

    @property
    def chunks(self) -> int:
        """Copies of a row in all steps, but for what fills the last one."""
        return prod(self.window.kernel) * self.window.channels // CHUNK

    @property
    def steps(self) -> int:
        """Turns of the loop over the window."""
        return -(-self.chunks * CHUNK // STEP)

    @property
    def panels(self) -> int:
        """Tiles side by side, for all channels."""
        return -(-self.outputs // self.columns)

    @property
    def warps(self) -> tuple[int, int]:
        """Warps of a block, by rows and columns."""
        return self.rows // WARP_TILE, self.columns // WARP_TILE

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * prod(self.warps)

    @property
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of inputs and of weights in a stage."""
        return self.rows * STEP, self.columns * STEP

    @property
    def order(self) -> Order:
        """Order of weights (outputs, inputs, *kernel): what a lane needs of a step's block lies side by side.

        Panel, step, block of columns; then the lane's column and its place among four; then halves of the step, the
        two registers of a fragment, and its bytes.
        """
        return Order((self.panels, self.steps, self.columns // BLOCK, BLOCK, 4, 2, 2, 4), self._source)

    def _source(self, place: Sequence[Any]) -> IndexSource:
        panel, step, block, column, group, half, register, byte = place
        output = panel * self.columns + channel(block, column)
        along = step * STEP + half * 32 + register * 16 + group * 4 + byte
        channels, taps = self.window.channels, prod(self.window.kernel)
        offset = (output * channels + along % channels) * taps + along // channels
        return IndexSource(offset, ((output, self.outputs), (along, self.chunks * CHUNK)))

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per output channel, and zeros for those that fill the last panel."""
        return np.pad(values, (0, self.panels * self.columns - self.outputs))


def channel(block: Any, column: Any) -> Any:
    """The channel of a panel that is column 0 … 7 of a block: a lane's eight sums of a row are then neighbours."""
    return block // BLOCKS * WARP_TILE + column // 2 * BLOCK + block % BLOCKS * 2 + column % 2
