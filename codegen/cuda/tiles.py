"""How a product of codes is cut for tensor cores, and its weights in the order in which lanes read fragments.

Rows of the product are output pixels of all samples, columns output channels, and what is summed is the window: tap by
tap, 16 channels (one asynchronous copy) at a time. A block computes a tile; its warps take some rows and 32 columns of
it each, by mma.m16n8k32. A step of the loop takes 64 bytes of every row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ptqc.codegen.program.constants import IndexSource, Order
from ptqc.codegen.program.program import Window

STEP, CHUNK, LANES = 64, 16, 32
# Bytes of each row that one instruction takes, and such parts of a step.
PART = 32
PARTS = STEP // PART
# Bits that tell which of four neighbours a stored weight is.
PLACE = 2
# Rows and columns of one instruction; blocks of columns in one warp's tile.
ROWS, BLOCK, BLOCKS = 16, 8, 4
# Sums of a lane in a tile of 16 × 8.
SUMS = 4
WARP_COLUMNS = BLOCK * BLOCKS


@dataclass(frozen=True)
class TileCut:
    """rows, columns: of a block's tile. row_tiles: of 16 rows, in a warp's. shares: warps that have the same tile and
    each multiply a share of every step. stages: steps that are in shared memory at a time."""

    rows: int
    columns: int
    row_tiles: int = 2
    shares: int = 1
    stages: int = 3


@dataclass(frozen=True)
class Tiles:
    """A layer of one group. bits: of a code of its weights, as they are packed. is_sparse: whether of each four of a
    sum two are stored, and which these are. is_float8: whether it multiplies FP8."""

    window: Window
    outputs: int
    cut: TileCut
    bits: int = 8
    is_sparse: bool = False
    is_float8: bool = False

    @property
    def depth(self) -> int:
        """Bytes of a row."""
        return prod(self.window.kernel) * self.window.channels

    @property
    def chunks(self) -> int:
        """Copies of a row in all steps, but for what fills the last one."""
        return self.depth // CHUNK

    @property
    def steps(self) -> int:
        """Turns of the loop over the window."""
        return -(-self.depth // STEP)

    @property
    def panels(self) -> int:
        """Tiles side by side, for all channels."""
        return -(-self.outputs // self.cut.columns)

    @property
    def warp_rows(self) -> int:
        """Rows of a warp's tile."""
        return self.cut.row_tiles * ROWS

    @property
    def warps(self) -> tuple[int, int, int]:
        """Warps of a block: by shares, rows and columns."""
        return self.cut.shares, self.cut.rows // self.warp_rows, self.cut.columns // WARP_COLUMNS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * prod(self.warps)

    @property
    def input_bytes(self) -> int:
        """Of a step."""
        return self.cut.rows * STEP

    @property
    def units(self) -> int:
        """Of a step: PART stored weights of each column, which a lane has in registers at a time."""
        return 1 if self.is_sparse else PARTS

    @property
    def unit_bytes(self) -> int:
        """Of the weights of a warp's columns."""
        return WARP_COLUMNS * PART * (self.bits + (PLACE if self.is_sparse else 0)) // 8

    @property
    def weight_bytes(self) -> int:
        """Of a step."""
        return self.unit_bytes * self.units * self.warps[2]

    @property
    def step_bytes(self) -> int:
        """Of inputs and weights."""
        return self.input_bytes + self.weight_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: for the steps on their way, later for what warps have summed that share steps."""
        summed = (self.cut.shares - 1) * self.cut.rows * self.cut.columns * 4
        return max(self.cut.stages * self.step_bytes, summed)

    @property
    def order(self) -> Order:
        """Order of dense weights (outputs, inputs, *kernel): what a lane needs of a part of a step lies side by side.

        Panel, step, warp's columns, part; then the lane: its column and its place among four; then blocks of columns,
        the two registers of a fragment, and its bytes.
        """
        sizes = (self.panels, self.steps, self.warps[2], PARTS, BLOCK, LANES // BLOCK, BLOCKS, 2, 4)
        return Order(sizes, self._source)

    @property
    def order_of_bytes(self) -> Order:
        """The same as codes of 8 bits lie: two blocks of all lanes, then the two others."""
        sizes = (self.panels, self.steps, self.warps[2], PARTS, 2, BLOCK, LANES // BLOCK, BLOCKS // 2, 2, 4)

        def source(place: Sequence[Any]) -> IndexSource:
            *front, half, column, group, block, register, byte = place
            return self._source((*front, column, group, half * (BLOCKS // 2) + block, register, byte))

        return Order(sizes, source)

    def _source(self, place: Sequence[Any]) -> IndexSource:
        panel, step, warp, part, column, group, block, register, byte = place
        within, half = self.fragment(column, block, register)
        output = panel * self.cut.columns + warp * WARP_COLUMNS + within
        along = step * STEP + part * PART + half * CHUNK + group * 4 + byte
        channels, taps = self.window.channels, prod(self.window.kernel)
        offset = (output * channels + along % channels) * taps + along // channels
        return IndexSource(offset, ((output, self.outputs), (along, self.depth)))

    def fragment(self, column: Any, block: Any, register: Any) -> tuple[Any, Any]:
        """The channel of a warp's that is column 0 … 7 of a block, and which half of a part a register has of it.

        A lane's eight sums of a row are neighbours.
        """
        return column // 2 * BLOCK + block * 2 + column % 2, register

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per output channel, and zeros for those that fill the last panel."""
        return np.pad(values, (0, self.panels * self.cut.columns - self.outputs))
