"""Convolutions and products of codes by products of warpgroups, which Hopper's tensor cores take at their full rate.

What is summed is as in `mma.py`, but weights are the left matrix of wgmma.m64nNk32, which it takes from registers: they
are unpacked there as for other kernels. It reads the right matrix, pixels, from shared memory: the rows that
`async_copy.py` leaves there are those of a matrix swizzled by 64 bytes. While a part of a step is multiplied, a warp
unpacks the weights of the next one.

Only chips of compute capability 9.0 have the instruction. For the others nvcc compiles the other branch: the same
products and sums of each warp by mma.sync, of the same weights, in the same tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda import costs, instructions
from ptqc.codegen.cuda.async_copy import Thread, exchanged
from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.mma import stored
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.products import MATRICES, Registers
from ptqc.codegen.cuda.results import ptx
from ptqc.codegen.cuda.swap_ab import CHANNEL_TILES, PAIRS, LeftProduct
from ptqc.codegen.cuda.tiles import BLOCK, CHUNK, PART, ROWS, STEP, SUMS
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.cuda.wgmma_tiles import GroupTiles
from ptqc.codegen.kernels.writing import KernelSource

MULTIPLY_ALONE = instructions.mma_swapped(instructions.SWAPPED)
# The upper half of what describes a matrix in shared memory: swizzled by 64 bytes; from 8 rows to the next 8, in pieces
# of 16 bytes. The lower half: the distance between pieces, which is not used but said to be 1, and the address.
SWIZZLED, UNUSED, ADDRESS = 2 << 30, 1 << 16, 2**14 - 1
# Where the pattern of swizzled rows begins.
ALIGNED = BLOCK * STEP
# Pairs of registers with the weights of a part of a step.
OF_PART = CHANNEL_TILES * PAIRS
_HAS_WARPGROUPS = """
__forceinline__ __device__ bool ptqc_has_warpgroups() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  return true;
#else
  return false;
#endif
}
"""


def variants(layer: CodedLayer) -> list[Variant]:
    """Worth a trial on chips with such products; nothing but that is to choose them."""
    coding = layer.coding
    ranked = costs.ranked_groups(layer.window, len(layer.weights), coding)
    return [
        Variant(GroupProduct.family, tiles, coding, partial(write, tiles, coding, layer), costs.GROUPED)
        for tiles in ranked
    ]


def write(tiles: GroupTiles, coding: Coding | PairCoding, layer: CodedLayer) -> KernelSource:
    """One of them."""
    return GroupProduct(tiles, coding, layer.x, layer.results).build(stored(layer.codes, tiles, coding))


@dataclass(frozen=True)
class GroupProduct(LeftProduct):
    """One kernel. A unit is half of a step; the weights of each have registers of their own."""

    family: ClassVar[str] = "group_mma"
    pairs: ClassVar[int] = 2 * OF_PART
    unroll: ClassVar[bool | None] = False  # else the assembler lets products wait for each other
    behind: ClassVar[int] = 1

    @property
    def input_words(self) -> int:
        """Of 16 pixels, without wgmma."""
        return SUMS

    def shared_memory(self) -> Any:
        """As much as a launch asks for."""
        return T.alloc_buffer((self.tiles.shared_bytes,), "uint8", scope="shared.dyn", align=ALIGNED)

    def await_copies(self, left: int) -> None:
        """Let products of warpgroups, which have another view of shared memory, see what has come."""
        super().await_copies(left)
        with T.If(_has_warpgroups()), T.Then():
            ptx("fence.proxy.async.shared::cta")

    def await_all(self) -> None:
        """The products of the last part, too."""
        super().await_all()
        with T.If(_has_warpgroups()), T.Then():
            ptx("wgmma.wait_group.sync.aligned", 0)

    def multiply(self, thread: Thread, shared: Any, begin: Any, unit: Any, registers: Registers) -> None:
        """Unpack the weights while the part before is multiplied; begin to multiply this one; wait for that one."""
        tiles = self.tiles
        place = (thread.column_warp * tiles.units + unit) * tiles.unit_bytes
        first = T.Bind(begin + tiles.input_bytes + place)
        self.coding.load(registers.packed, lambda offset: T.address_of(shared[first + offset]), thread.lane)
        accumulators = registers.weights[unit % 2 * OF_PART :][:OF_PART]
        for block, weights in enumerate(accumulators):
            self.coding.unpack(registers.packed, registers.table, weights, block)
        left = [
            [weights[i] for weights in accumulators[m * PAIRS :][:PAIRS] for i in range(2)]
            for m in range(CHANNEL_TILES)
        ]
        rows = T.Bind(begin + thread.row_warp * tiles.warp_rows * STEP)
        with T.If(_has_warpgroups()):
            with T.Then():
                self._multiply_together(left, shared[rows + unit * PART], registers.sums)
            with T.Else():
                self._multiply_alone(thread, left, shared, rows, unit, registers)

    def _multiply_together(self, left: Sequence[Sequence[Any]], first: Any, sums: Any) -> None:
        """first: byte of the pixels."""
        address = T.cuda.cvta_generic_to_shared(T.address_of(first))
        piece = T.bitwise_and(T.shift_right(address, T.uint32(CHUNK.bit_length() - 1)), T.uint32(ADDRESS))
        upper = T.shift_left(T.Cast("uint64", T.uint32(SWIZZLED | BLOCK * STEP // CHUNK)), T.uint64(32))
        matrix = T.Bind(T.bitwise_or(T.Cast("uint64", T.bitwise_or(piece, T.uint32(UNUSED))), upper))
        ptx("wgmma.fence.sync.aligned")
        multiply = instructions.wgmma(instructions.GROUPED, self.pixel_blocks * BLOCK)
        for channels, weights in enumerate(left):
            accumulators = [sums[i] for block in range(self.pixel_blocks) for i in self.sum_numbers(block, channels)]
            ptx(multiply, *accumulators, *weights, matrix, T.bool(True))
        ptx("wgmma.commit_group.sync.aligned")
        ptx("wgmma.wait_group.sync.aligned", 1)

    def _multiply_alone(
        self, thread: Thread, left: Sequence[Sequence[Any]], shared: Any, rows: Any, unit: Any, registers: Registers
    ) -> None:
        """Of 16 pixels after the others. rows: where the warp's begin."""
        inputs = [registers.inputs[i] for i in range(SUMS)]
        for first in range(0, self.pixel_blocks, 2):
            row = T.Bind(first * BLOCK + T.truncdiv(thread.lane, ROWS) * BLOCK + T.truncmod(thread.lane, BLOCK))
            piece = T.bitwise_xor(unit * 2 + T.truncmod(T.truncdiv(thread.lane, BLOCK), 2), exchanged(row))
            ptx(MATRICES, *inputs, T.address_of(shared[rows + row * STEP + piece * CHUNK]))
            for block in range(2):
                for channels, weights in enumerate(left):
                    accumulators = [registers.sums[i] for i in self.sum_numbers(first + block, channels)]
                    ptx(MULTIPLY_ALONE, *accumulators, *weights, *inputs[2 * block :][:2], *accumulators)


def _has_warpgroups() -> Any:
    """Whether the chip that nvcc compiles for has their products."""
    return T.cuda.func_call("ptqc_has_warpgroups", source_code=_HAS_WARPGROUPS, return_type="bool")
