"""Convolutions and products of codes on tensor cores: an implicit product of matrices, see `tiles.py`.

Inputs and weights come to shared memory a few steps ahead of the products, see `copies.py`. Weights stay packed until a
lane has them in registers, see `fragments.py`. Where warps share the steps of a tile, the first one adds up what the
others have summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda import costs
from ptqc.codegen.cuda.copies import BlockMemory, Steps, Thread, exchanged
from ptqc.codegen.cuda.fragments import BYTE, Coding
from ptqc.codegen.cuda.pairs import PairCoding
from ptqc.codegen.cuda.results import Results, constants_of, ptx
from ptqc.codegen.cuda.tiles import BLOCK, BLOCKS, CHUNK, LANES, PARTS, ROWS, STEP, WARP_COLUMNS, Tiles
from ptqc.codegen.kernels.epilogue import Epilogue
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.narrowing import PACKED
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.accuracy import SUM_OF_PRODUCTS
from ptqc.codegen.program.built import Built
from ptqc.codegen.program.constants import Arranged, InOrder, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.window import Window

MULTIPLY = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
# Bits of a code that pairs have to save.
WORTH = 2
# Sums of a lane in a tile of 16 × 8.
SUMS = 4


def integer(
    x: Layout,
    y: Layout,
    isa: Isa,
    window: Window,
    weights: np.ndarray,
    requantization: Requantization,
    epilogue: Epilogue,
) -> Built:
    """Codes x times int8 weights (outputs, inputs, *kernel); y is codes, or real values when it is float32."""
    coding = _coding(weights.astype(np.int8))
    tiles = costs.chosen(window, len(weights), coding)
    made = write(tiles, coding, x, y, isa, weights, requantization, epilogue)
    return replace(made, predicted=costs.predicted(tiles, coding))


def write(
    tiles: Tiles,
    coding: Coding | PairCoding,
    x: Layout,
    y: Layout,
    isa: Isa,
    weights: np.ndarray,
    requantization: Requantization,
    epilogue: Epilogue,
) -> Built:
    """The same, cut and packed in a given way."""
    constants: list[Stored] = [
        _stored(weights.astype(np.int8), tiles, coding),
        *([] if coding.table is None else [coding.table]),
        *constants_of(requantization, tiles.pack_channels),
        *epilogue.constants(isa),
    ]
    operations = 2 * tiles.window.products * tiles.window.channels * len(weights)
    body = Product(tiles, coding, x, Results(y, isa, len(weights), epilogue)).body
    return build("dense_mma", [x, *epilogue.others], constants, y, body, operations, SUM_OF_PRODUCTS)


def _coding(codes: np.ndarray) -> Coding | PairCoding:
    """The way to pack codes that takes fewer bits, where looking up pairs is worth it."""
    alone, pairs = Coding.of(codes, codes[0].size), PairCoding.of(codes)
    return pairs if pairs is not None and pairs.bits + WORTH <= alone.bits else alone


def _stored(codes: np.ndarray, tiles: Tiles, coding: Coding | PairCoding) -> Stored:
    """Weights as they lie in the file: as lanes take them, or where pairs of codes take fewer bits, as such."""
    arranged = Arranged(codes, tiles.order_of_bytes)
    if coding.bits == BYTE and arranged.indexed.bits < BYTE * arranged.indexed.group:
        return arranged
    return InOrder(coding.pack(tiles.order(codes)))


@dataclass(frozen=True)
class _Registers:
    """What a thread works with. table: of listed codes or pairs. packed: weights for a part of a step.

    weights: of one block of columns."""

    inputs: Any
    table: Any
    packed: Any
    weights: Any
    sums: Any


@dataclass(frozen=True)
class Product:
    """One kernel."""

    tiles: Tiles
    coding: Coding | PairCoding
    x: Layout
    results: Results

    @property
    def _steps(self) -> Steps:
        return Steps(self.tiles, self.x)

    @property
    def _sums(self) -> int:
        """Of a lane."""
        return self.tiles.cut.row_tiles * BLOCKS * SUMS

    def body(self, batch: Any, x: Any, *rest: Any) -> None:
        """See `ptqc.codegen.kernels.kernel.write`."""
        tiles, beside = self.tiles, len(self.results.epilogue.others)
        others, (weights, *constants, out) = rest[:beside], rest[beside:]
        rows, (_, row_warps, column_warps) = tiles.cut.rows, tiles.warps
        total = T.Cast("int32", batch) * prod(tiles.window.output)
        with (
            T.launch_thread("blockIdx.x", T.truncdiv(total + (rows - 1), rows)) as tile,
            T.launch_thread("blockIdx.y", T.int32(tiles.panels)) as panel,
            T.launch_thread("threadIdx.x", T.int32(tiles.threads)) as number,
        ):
            warp = T.Bind(T.truncdiv(number, LANES))
            within = T.Bind(T.truncdiv(warp, column_warps))
            places = (T.truncdiv(within, row_warps), T.truncmod(within, row_warps), T.truncmod(warp, column_warps))
            thread = Thread(tile, panel, number, T.Bind(T.truncmod(number, LANES)), *map(T.Bind, places))
            shared = T.alloc_buffer((self.tiles.shared_bytes,), "uint8", scope="shared")
            starts = T.alloc_buffer((self._steps.copied_rows,), "int64", scope="local")
            registers = self._registers(constants, number)
            last = T.Bind(total - 1)
            self._steps.find_rows(thread, starts, last)
            self._accumulate(thread, BlockMemory(x, weights, shared, starts), registers)
            constants = constants if self.coding.table is None else constants[1:]
            if tiles.cut.shares == 1:
                self._store(thread, registers.sums, last, constants, others, out)
                return
            self._add_shares(thread, shared, registers.sums)
            with T.If(thread.share == 0), T.Then():
                self._store(thread, registers.sums, last, constants, others, out)

    def _registers(self, constants: Sequence[Any], number: Any) -> _Registers:
        sizes = (self.tiles.cut.row_tiles * SUMS, self.coding.bits, 2, self._sums)
        inputs, packed, weights, sums = (T.alloc_buffer((size,), "uint32", scope="local") for size in sizes)
        table = None if self.coding.table is None else self.coding.prepare(constants, number, self.tiles.threads)
        made = _Registers(inputs, table, packed, weights, sums)
        for i in range(self._sums):
            T.buffer_store(made.sums, T.uint32(0), [i])
        return made

    def _accumulate(self, thread: Thread, memory: BlockMemory, registers: _Registers) -> None:
        """All steps: the copies of later ones are on their way while the products of one are computed."""
        tiles, stages = self.tiles, self.tiles.cut.stages
        for stage in range(stages - 1):
            if stage < tiles.steps:
                self._steps.load(thread, memory, stage, stage)
            ptx("cp.async.commit_group")
        with T.serial(tiles.steps) as step:
            ptx("cp.async.wait_group", stages - 2)
            T.evaluate(T.cuda.cta_sync())
            ahead = T.Bind(step + (stages - 1))
            with T.If(ahead < tiles.steps), T.Then():
                self._steps.load(thread, memory, ahead, T.truncmod(ahead, stages))
            ptx("cp.async.commit_group")
            begin = T.Bind(T.truncmod(step, stages) * self.tiles.step_bytes)
            own = PARTS // tiles.cut.shares
            for part in range(own):
                self._multiply(thread, memory.shared, begin, thread.share * own + part, registers)
        ptx("cp.async.wait_all")
        for i in range(self._sums if self.coding.shift else 0):
            scaled = T.shift_right(T.reinterpret("int32", registers.sums[i]), T.int32(self.coding.shift))
            T.buffer_store(registers.sums, T.reinterpret("uint32", scaled), [i])

    def _multiply(self, thread: Thread, shared: Any, begin: Any, part: Any, registers: _Registers) -> None:
        """Products of 32 bytes of every row."""
        for tile in range(self.tiles.cut.row_tiles):
            row = T.Bind(thread.row_warp * self.tiles.warp_rows + tile * ROWS + T.truncmod(thread.lane, ROWS))
            piece = T.bitwise_xor(part * 2 + T.truncdiv(thread.lane, ROWS), exchanged(row))
            address = T.address_of(shared[begin + row * STEP + piece * CHUNK])
            ptx(MATRICES, *(registers.inputs[tile * SUMS + i] for i in range(SUMS)), address)
        here = begin + self.tiles.input_bytes + (thread.column_warp * PARTS + part) * self.tiles.part_bytes
        first = T.Bind(here)
        self.coding.load(registers.packed, lambda offset: T.address_of(shared[first + offset]), thread.lane)
        weights = registers.weights
        for block in range(BLOCKS):
            self.coding.unpack(registers.packed, registers.table, weights, block)
            for tile in range(self.tiles.cut.row_tiles):
                own = [registers.sums[(tile * BLOCKS + block) * SUMS + i] for i in range(SUMS)]
                given = (registers.inputs[tile * SUMS + i] for i in range(SUMS))
                ptx(MULTIPLY, *own, *given, weights[0], weights[1], *own)

    def _add_shares(self, thread: Thread, shared: Any, sums: Any) -> None:
        """Give the sums of all shares to the first one; they lie where the steps did, which all warps have read."""
        words = T.decl_buffer((self.tiles.shared_bytes // 4,), "uint32", data=shared.data, scope="shared")
        tile = thread.row_warp * self.tiles.warps[2] + thread.column_warp
        tiles = self.tiles.warps[1] * self.tiles.warps[2]

        def place(share: Any, i: int) -> Any:
            return (((share - 1) * tiles + tile) * self._sums + i) * LANES + thread.lane

        T.evaluate(T.cuda.cta_sync())
        with T.If(thread.share > 0), T.Then():
            for i in range(self._sums):
                T.buffer_store(words, sums[i], [place(thread.share, i)])
        T.evaluate(T.cuda.cta_sync())
        with T.If(thread.share == 0), T.Then():
            for share in range(1, self.tiles.cut.shares):
                for i in range(self._sums):
                    T.buffer_store(sums, sums[i] + words[place(share, i)], [i])

    def _store(
        self, thread: Thread, sums: Any, last: Any, constants: Sequence[Any], others: Sequence[Any], out: Any
    ) -> None:
        """A lane has eight neighbouring channels of four pixels."""
        first = T.Bind(
            thread.panel * self.tiles.cut.columns
            + thread.column_warp * WARP_COLUMNS
            + T.truncmod(thread.lane, 4) * BLOCK
        )
        for tile in range(self.tiles.cut.row_tiles):
            for below in range(2):
                inside = thread.row_warp * self.tiles.warp_rows + tile * ROWS + below * 8 + T.truncdiv(thread.lane, 4)
                index = T.Bind(thread.tile * self.tiles.cut.rows + inside)
                with T.If(index <= last), T.Then():
                    place = self._steps.place(index)
                    for group in range(BLOCK // PACKED):
                        # Channel 2·block + e of the lane's eight is sum 2·below + e of that block.
                        own = [
                            sums[(tile * BLOCKS + at // 2) * SUMS + below * 2 + at % 2]
                            for at in range(group * PACKED, (group + 1) * PACKED)
                        ]
                        channel = T.Bind(first + group * PACKED)
                        with T.If(channel < self.tiles.outputs), T.Then():
                            self.results.store(own, (*place, channel), constants, others, out)
