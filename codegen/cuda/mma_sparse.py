"""Convolutions and products of codes with weights of which two of each four are zero, on sparse tensor cores.

What is summed is as in `mma.py`, but weights are the left matrix and pixels the columns of the right one:
mma.sp::ordered_metadata.m16n8k64 takes 64 inputs of 8 pixels, and of the weights of 16 channels the half that is kept,
in the time of 32 inputs. See `sparse_codes.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda import costs, instructions
from ptqc.codegen.cuda.async_copy import Thread, exchanged
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.packed_weights import Coding, load_words
from ptqc.codegen.cuda.products import MATRICES, Registers
from ptqc.codegen.cuda.results import ptx
from ptqc.codegen.cuda.sparse_codes import SparseCodes
from ptqc.codegen.cuda.swap_ab import CHANNEL_TILES, PAIRS, LeftProduct
from ptqc.codegen.cuda.tiles import BLOCK, CHUNK, LANES, STEP, SUMS, Tiles
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.writing import KernelSource
from ptqc.codegen.program.constants import InOrder

MULTIPLY = instructions.mma_sparse(instructions.SPARSE)
# Of weights of 8 bits all lanes of a group give the places of some; there is nothing to select.
SELECTOR = 0


def variants(layer: CodedLayer) -> list[Variant]:
    """All ways to compute a layer; none where more than two of four weights are not zero."""
    codes = SparseCodes.of(layer.codes)
    if codes is None:
        return []
    coding = codes.coding()
    ranked = costs.ranked(layer.window, len(layer.weights), coding, is_sparse=True)
    return [
        Variant(SparseProduct.family, tiles, coding, partial(write, tiles, coding, codes, layer)) for tiles in ranked
    ]


def write(tiles: Tiles, coding: Coding, codes: SparseCodes, layer: CodedLayer) -> KernelSource:
    """One of them. codes: the weights that are kept."""
    return SparseProduct(tiles, coding, layer.x, layer.results).build(InOrder(codes.pack(tiles, coding)))


@dataclass(frozen=True)
class SparseProduct(LeftProduct):
    """One kernel. A unit is a step."""

    family: ClassVar[str] = "sparse_mma"
    pairs: ClassVar[int] = PAIRS

    @property
    def input_words(self) -> int:
        """Four for each 8 pixels."""
        return self.pixel_blocks * SUMS

    def multiply(self, thread: Thread, shared: Any, begin: Any, unit: Any, registers: Registers) -> None:  # noqa: ARG002
        """Inputs of all pixels first; then the weights of one matrix of 16 channels after the other."""
        for block in range(self.pixel_blocks):
            row = T.Bind(thread.row_warp * self.tiles.warp_rows + block * BLOCK + T.truncmod(thread.lane, BLOCK))
            piece = T.bitwise_xor(T.truncdiv(thread.lane, BLOCK), exchanged(row))
            address = T.address_of(shared[begin + row * STEP + piece * CHUNK])
            ptx(MATRICES, *(registers.inputs[block * SUMS + i] for i in range(SUMS)), address)
        first = T.Bind(begin + self.tiles.input_bytes + thread.column_warp * self.tiles.unit_bytes)
        self.coding.load(registers.packed, lambda offset: T.address_of(shared[first + offset]), thread.lane)
        places = T.alloc_buffer((CHANNEL_TILES,), "uint32", scope="local")
        behind = self.tiles.unit_bytes - LANES * CHANNEL_TILES * 4
        load_words((CHANNEL_TILES,), places, lambda at: T.address_of(shared[first + (behind + at)]), thread.lane)
        for matrix in range(CHANNEL_TILES):
            for pair, weights in enumerate(registers.weights):
                self.coding.unpack(registers.packed, registers.table, weights, matrix * PAIRS + pair)
            remaining = [weights[i] for weights in registers.weights for i in range(2)]
            for block in range(self.pixel_blocks):
                accumulators = [registers.sums[i] for i in self.sum_numbers(block, matrix)]
                inputs = (registers.inputs[block * SUMS + i] for i in range(SUMS))
                ptx(MULTIPLY, *accumulators, *remaining, *inputs, *accumulators, places[matrix], SELECTOR)
