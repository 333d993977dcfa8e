"""Products of few rows of float16 with codes of 4 or 8 bits that have a scale for each block of inputs (W4A16, W8A16).

What takes time is reading the weights, once, 128 bits to a lane at a time. On tensor cores (mma.m16n8k16) weights are
the left matrix, 16 outputs at a time, so that a product wastes no more than the rows that fill up 8 or 16. Codes become
float16 in registers: lop3 or prmt puts them into the digits of 1024 + code, from which a subtraction or a fused product
leaves the code, exactly. Products of a block are summed in float32 before its scale is multiplied. Warps of a block of
threads take turns along the inputs; what they have summed is added in the order of the warps, so that results do not
depend on time.

Inputs come in an order in which a lane's are neighbours: of every 32, lane 4·g + t has 8·t … 8·t + 7.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.results import ptx
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource
from ptqc.codegen.program.constants import InOrder, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, UnsupportedOp

MULTIPLY = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
LOAD = "ld.global.nc.v4.b32"
LANES, WORD, WORDS = 32, 32, 4
# Outputs, rows and inputs that a warp takes at a time, the latter by two instructions; inputs of a lane, sums of one.
OUTPUTS, ROWS, INPUTS, OWN, SUMS = 16, 8, 32, 8, 4
MOST_WARPS, MOST_ROWS = 8, 16
BLOCK_SIZES = (32, 64, 128)
# Where a lane's eight codes of 4 bits lie in their word: pairs that one mask leaves are 16 bits apart.
HALF_BYTES = (0, 4, 1, 5, 2, 6, 3, 7)
# Two numbers of float16: 1024, 1024 + 8, 1/16, −(64 + 8), 1024 + 128.
EXPONENT, ZERO, SIXTEENTH, ZERO_ABOVE, ZERO_OF_BYTES = 0x64006400, 0x64086408, 0x2C002C00, 0xD480D480, 0x64806480
LOWER, UPPER = 0x000F000F, 0x00F000F0
# Bits of one word under a mask, and those of another.
AND_OR = 0xEA
# Lower and upper pair of a word's bytes, each behind the exponent's byte.
BYTES = (0x5150, 0x5352)


def product(x: Layout, y: Layout, weights: "WeightOnly", codes: np.ndarray, scales: np.ndarray) -> KernelSource:
    """x (rows, inputs) of float16 times codes · scales gives y (rows, outputs), float32 or float16.

    codes: int8 (outputs, inputs), within the weights' bits. scales: (outputs, blocks of inputs), float32 or float16.
    Raises UnsupportedOp for sizes that have no kernel.
    """
    weights.check()
    constants: list[Stored] = [InOrder(weights.pack(codes)), weights.pack_scales(scales)]
    return build("weight_only", [x], constants, y, weights.body, 2 * codes.size, SUM_OF_PRODUCTS)


@dataclass(frozen=True)
class _Lane:
    """Where a lane is: which 16 outputs and which rows its block takes; its group of four, its place there."""

    tile: Any
    first_row: Any
    lane: Any
    group: Any
    place: Any


@dataclass(frozen=True)
class _Room:
    """Registers of a lane: words of weights; weights and inputs of 32 inputs; sums of a block and of all."""

    words: Any
    weights: Any
    inputs: Any
    part: Any
    total: Any


@dataclass(frozen=True)
class WeightOnly:
    """One kernel. block: inputs that share a scale. most_rows: 8 or 16 for a block of threads; any are taken."""

    bits: int
    outputs: int
    inputs: int
    block: int
    most_rows: int

    def check(self) -> None:
        """Raises UnsupportedOp where it cannot be written."""
        if self.bits not in (4, 8) or self.block not in BLOCK_SIZES or self.most_rows not in (ROWS, MOST_ROWS):
            raise UnsupportedOp(
                f"{self.bits} bits with a scale for {self.block} inputs and {self.most_rows} rows: there are kernels "
                f"for 4 and 8 bits, blocks of {', '.join(map(str, BLOCK_SIZES))} and {ROWS} or {MOST_ROWS} rows"
            )
        if self.inputs % self.turn:
            raise UnsupportedOp(f"{self.inputs} inputs are not a multiple of {self.turn}")

    @property
    def unit(self) -> int:
        """Inputs of which a lane loads its codes at once."""
        return WORDS * WORD // self.bits * INPUTS // (2 * OWN)

    @property
    def turn(self) -> int:
        """Inputs that a warp takes in a turn."""
        return max(self.unit, self.block)

    @property
    def turns(self) -> int:
        """Of all warps."""
        return self.inputs // self.turn

    @property
    def warps(self) -> int:
        """Of a block."""
        return min(MOST_WARPS, self.turns)

    @property
    def tiles(self) -> int:
        """Of 16 outputs."""
        return -(-self.outputs // OUTPUTS)

    @property
    def sums(self) -> int:
        """Of a lane."""
        return self.most_rows // ROWS * SUMS

    def pack(self, codes: np.ndarray) -> np.ndarray:
        """uint32 of codes without a sign: tile, unit of inputs, lane, words of 32 inputs and of outputs g and g + 8."""
        padded = np.pad(codes, ((0, self.tiles * OUTPUTS - self.outputs), (0, 0))).astype(np.int16)
        result = (padded + 2 ** (self.bits - 1)).astype(np.uint32)
        parts = self.unit // INPUTS
        axes = result.reshape(self.tiles, 2, OUTPUTS // 2, self.inputs // self.unit, parts, INPUTS // OWN, OWN)
        accumulators = axes.transpose(0, 3, 2, 5, 4, 1, 6)  # tile, unit, g, t, 32 inputs, output g or g + 8, own inputs
        per_word = WORD // self.bits
        shifts = np.array(HALF_BYTES if self.bits == 4 else range(WORDS), np.uint32) * np.uint32(self.bits)
        words = accumulators.reshape(*accumulators.shape[:-1], OWN // per_word, per_word) << shifts
        return np.ascontiguousarray(np.bitwise_or.reduce(words, axis=-1)).reshape(-1)

    def pack_scales(self, scales: np.ndarray) -> np.ndarray:
        """Tile, block of inputs, output."""
        padded = np.pad(scales, ((0, self.tiles * OUTPUTS - self.outputs), (0, 0)))
        return np.ascontiguousarray(padded.reshape(self.tiles, OUTPUTS, -1).transpose(0, 2, 1)).reshape(-1)

    def body(self, grid: KernelGrid, x: Any, weights: Any, scales: Any, out: Any) -> None:
        """See `ptqc.codegen.kernels.writing.write`."""
        groups = T.truncdiv(T.Cast("int32", grid.batch) + (self.most_rows - 1), self.most_rows)
        with (
            T.launch_thread("blockIdx.x", T.int32(self.tiles)) as tile,
            T.launch_thread("blockIdx.y", groups) as rows,
            T.launch_thread("threadIdx.x", T.int32(LANES * self.warps)) as number,
        ):
            lane, warp = T.Bind(T.truncmod(number, LANES)), T.Bind(T.truncdiv(number, LANES))
            places = T.Bind(T.truncdiv(lane, 4)), T.Bind(T.truncmod(lane, 4))
            where = _Lane(tile, T.Bind(rows * self.most_rows), lane, *places)
            room = self._room()
            last = T.Bind(T.Cast("int32", grid.batch) - 1)
            with T.serial(-(-self.turns // self.warps)) as i:
                turn = T.Bind(i * self.warps + warp)
                with T.If(turn < self.turns), T.Then():
                    self._load(where, weights, turn, room)
                    for block in range(self.turn // self.block):
                        self._add_block(where, turn, block, (x, scales, last), room)
            self._add_warps(where, number, warp, room.total, last, out)

    def _room(self) -> _Room:
        sizes = ((self.turn // self.unit * WORDS, 2 * OWN // 2, OWN // 2), (self.sums, self.sums))
        words, dequantized, inputs = (T.alloc_buffer((size,), "uint32", scope="local") for size in sizes[0])
        part, total = (T.alloc_buffer((size,), "float32", scope="local") for size in sizes[1])
        for i in range(self.sums):
            T.buffer_store(total, T.float32(0), [i])
        return _Room(words, dequantized, inputs, part, total)

    def _load(self, where: _Lane, weights: Any, turn: Any, room: _Room) -> None:
        """All words of a turn, before any is used."""
        units = self.turn // self.unit
        first = T.Bind((where.tile * self.turns + turn) * units)
        for unit in range(units):
            address = T.address_of(weights[((first + unit) * LANES + where.lane) * WORDS])
            ptx(LOAD, *(room.words[unit * WORDS + i] for i in range(WORDS)), address)

    def _add_block(self, where: _Lane, turn: Any, block: int, inputs: tuple[Any, Any, Any], room: _Room) -> None:
        """Products of the inputs that share a scale."""
        x, scales, last = inputs
        for i in range(self.sums):
            T.buffer_store(room.part, T.float32(0), [i])
        for part in range(block * self.block // INPUTS, (block + 1) * self.block // INPUTS):
            self._dequantize(room, part)
            for row_tile in range(self.most_rows // ROWS):
                row = T.min(where.first_row + row_tile * ROWS + where.group, last)
                column = turn * self.turn + part * INPUTS + where.place * OWN
                address = T.address_of(x[T.Cast("int64", row), T.Cast("int64", column)])
                ptx(LOAD, *(room.inputs[i] for i in range(OWN // 2)), address)
                accumulators = [room.part[row_tile * SUMS + i] for i in range(SUMS)]
                for half in range(2):
                    pairs = [room.weights[output * WORDS + 2 * half + i] for i in range(2) for output in range(2)]
                    ptx(MULTIPLY, *accumulators, *pairs, *(room.inputs[2 * half + i] for i in range(2)), *accumulators)
        blocks = self.turn // self.block
        first = T.Bind(((where.tile * self.turns + turn) * blocks + block) * OUTPUTS + where.group)
        both = [T.Bind(T.Cast("float32", scales[first + output * (OUTPUTS // 2)])) for output in range(2)]
        for i in range(self.sums):
            T.buffer_store(room.total, room.total[i] + room.part[i] * both[i % SUMS // 2], [i])

    def _dequantize(self, room: _Room, part: int) -> None:
        """Codes of 32 inputs as pairs of float16: four of output g, four of output g + 8."""
        for output in range(2):
            if self.bits == 8:
                self._widen(room, part, output)
                continue
            word = room.words[part * 2 + output]
            for pair in range(WORDS):
                result = room.weights[output * WORDS + pair]
                moved = word if pair < 2 else T.shift_right(word, T.uint32(8))
                ptx("lop3.b32", result, moved, T.uint32((LOWER, UPPER)[pair % 2]), T.uint32(EXPONENT), AND_OR)
                if pair % 2 == 0:
                    ptx("sub.rn.f16x2", result, result, T.uint32(ZERO))
                else:
                    ptx("fma.rn.f16x2", result, result, T.uint32(SIXTEENTH), T.uint32(ZERO_ABOVE))

    def _widen(self, room: _Room, part: int, output: int) -> None:
        for pair in range(WORDS):
            result, word = room.weights[output * WORDS + pair], room.words[part * WORDS + output * 2 + pair // 2]
            ptx("prmt.b32", result, word, T.uint32(EXPONENT), T.uint32(BYTES[pair % 2]))
            ptx("sub.rn.f16x2", result, result, T.uint32(ZERO_OF_BYTES))

    def _add_warps(self, where: _Lane, number: Any, warp: Any, total: Any, last: Any, out: Any) -> None:
        """The sums of all warps, one after the other."""
        results, threads = self.sums * LANES, LANES * self.warps
        shared = T.alloc_buffer((self.warps * results,), "float32", scope="shared")
        for i in range(self.sums):
            T.buffer_store(shared, total[i], [warp * results + i * LANES + where.lane])
        T.evaluate(T.cuda.cta_sync())
        whole = T.alloc_buffer((1,), "float32", scope="local")
        for first in range(0, results, threads):
            index = T.Bind(first + number)
            with T.If(index < results), T.Then():
                T.buffer_store(whole, shared[index], [0])
                for other in range(1, self.warps):
                    T.buffer_store(whole, whole[0] + shared[other * results + index], [0])
                self._store(where, index, whole[0], last, out)

    def _store(self, where: _Lane, index: Any, value: Any, last: Any, out: Any) -> None:
        """Sum i of a lane belongs to output g or g + 8, and to row 2·t or 2·t + 1."""
        lane, i = T.Bind(T.truncmod(index, LANES)), T.Bind(T.truncdiv(index, LANES))
        below = T.truncdiv(T.truncmod(i, SUMS), 2) * (OUTPUTS // 2)
        output = T.Bind(where.tile * OUTPUTS + T.truncdiv(lane, 4) + below)
        within = T.truncdiv(i, SUMS) * ROWS + T.truncmod(lane, 4) * 2 + T.truncmod(i, 2)
        row = T.Bind(where.first_row + within)
        with T.If(T.And(row <= last, output < self.outputs)), T.Then():
            T.buffer_store(out, T.Cast(str(out.dtype), value), [T.Cast("int64", row), T.Cast("int64", output)])
