"""Convolutions and products of codes on tensor cores: an implicit product of matrices, see `tiles.py`.

Inputs are the left matrix of an instruction, weights the right one. What such kernels share is in `products.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.async_copy import Thread, exchanged
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.instructions import DENSE, parts, size
from ptqc.codegen.cuda.instructions import mma as instruction
from ptqc.codegen.cuda.packed_weights import BYTE, Coding, PairCoding
from ptqc.codegen.cuda.products import MATRICES, Registers, TiledProduct
from ptqc.codegen.cuda.results import ptx
from ptqc.codegen.cuda.tiles import BLOCK, BLOCKS, CHUNK, ROWS, STEP, SUMS, Tiles
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.isa import TileShape
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.constants import Arranged, InOrder, Stored


def variants(layer: CodedLayer) -> list[Variant]:
    """All ways to compute a layer, by predicted times."""
    coding = layer.coding
    ranked = costs.ranked(layer.window, len(layer.weights), coding)
    return [
        Variant(family_of(shape), tiles, coding, partial(write, tiles, coding, layer, shape))
        for shape in DENSE
        for tiles in ranked
    ]


def family_of(shape: TileShape) -> str:
    """What kernels of an instruction are called."""
    return Product.family if shape is DENSE[0] else f"{Product.family}_{size(shape)}"


def write(tiles: Tiles, coding: Coding | PairCoding, layer: CodedLayer, shape: TileShape = DENSE[0]) -> KernelSource:
    """One of them."""
    product = Product(tiles, coding, layer.x, layer.results, shape)
    return product.build(stored(layer.codes, tiles, coding))


def stored(codes: np.ndarray, tiles: Tiles, coding: Coding | PairCoding) -> Stored:
    """Weights as they lie in the file: as lanes take them, or where pairs of codes take fewer bits, as such."""
    arranged = Arranged(codes, tiles.order_of_bytes)
    if coding.bits == BYTE and arranged.indexed.bits < BYTE * arranged.indexed.group:
        return arranged
    return InOrder(coding.pack(tiles.order(codes)))


@dataclass(frozen=True)
class Product(TiledProduct):
    """One kernel. A unit is half of a step: 32 bytes of every row."""

    shape: TileShape = DENSE[0]

    family: ClassVar[str] = "dense_mma"
    pairs: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """What it is called."""
        return self.family if self.shape is DENSE[0] else family_of(self.shape)

    @property
    def input_words(self) -> int:
        """Four for each 16 rows."""
        return self.tiles.cut.row_tiles * SUMS

    def multiply(self, thread: Thread, shared: Any, begin: Any, unit: Any, registers: Registers) -> None:
        """Inputs of all rows first; then the weights of one block of columns after the other."""
        for tile in range(self.tiles.cut.row_tiles):
            row = T.Bind(thread.row_warp * self.tiles.warp_rows + tile * ROWS + T.truncmod(thread.lane, ROWS))
            piece = T.bitwise_xor(unit * 2 + T.truncdiv(thread.lane, ROWS), exchanged(row))
            address = T.address_of(shared[begin + row * STEP + piece * CHUNK])
            ptx(MATRICES, *(registers.inputs[tile * SUMS + i] for i in range(SUMS)), address)
        here = begin + self.tiles.input_bytes + (thread.column_warp * self.tiles.units + unit) * self.tiles.unit_bytes
        first = T.Bind(here)
        self.coding.load(registers.packed, lambda offset: T.address_of(shared[first + offset]), thread.lane)
        (weights,) = registers.weights
        for block in range(BLOCKS):
            self.coding.unpack(registers.packed, registers.table, weights, block)
            for tile in range(self.tiles.cut.row_tiles):
                accumulators = [registers.sums[(tile * BLOCKS + block) * SUMS + i] for i in range(SUMS)]
                inputs = [registers.inputs[tile * SUMS + i] for i in range(SUMS)]
                self._add_products(accumulators, inputs, [weights[0], weights[1]])

    def _add_products(self, sums: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any]) -> None:
        """Of 16 rows and 8 columns."""
        for accumulators, left, right in parts(self.shape, sums, inputs, weights):
            ptx(instruction(self.shape), *accumulators, *left, *right, *accumulators)

    def first_channel(self, lane: Any) -> Any:
        """A lane has eight channels."""
        return T.truncmod(lane, 4) * BLOCK

    def pixels(self, lane: Any) -> Iterator[tuple[Any, list[int]]]:
        """Channel 2·block + e of the eight is sum 2·below + e of that block."""
        for tile in range(self.tiles.cut.row_tiles):
            for below in range(2):
                row = tile * ROWS + below * 8 + T.truncdiv(lane, 4)
                yield row, [(tile * BLOCKS + at // 2) * SUMS + below * 2 + at % 2 for at in range(BLOCK)]
