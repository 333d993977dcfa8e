"""Convolutions and products of codes on tensor cores: an implicit product of matrices, see `tiles.py`.

Inputs and weights come to shared memory by asynchronous copies, a few steps ahead of the products. Rows of inputs lie
there with their pieces of 16 bytes exchanged among each other (by bits of the row's number), so that the eight rows
that ldmatrix reads at a time lie in different banks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.results import Results, constants_of, ptx
from ptqc.codegen.cuda.tiles import BLOCK, BLOCKS, CHUNK, LANES, STEP, WARP_TILE, Tiles
from ptqc.codegen.kernels.epilogue import Epilogue
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.narrowing import PACKED
from ptqc.codegen.kernels.requantization import Requantization
from ptqc.codegen.program.accuracy import SUM_OF_PRODUCTS
from ptqc.codegen.program.built import Built
from ptqc.codegen.program.constants import Arranged, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.window import Window

MULTIPLY = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
COPY = "cp.async.cg.shared.global"
# Pieces of a row in a step; tiles of 16 rows in a warp's; sums of a lane in one of 16 × 8.
PIECES, ROW_TILES, SUMS = STEP // CHUNK, 2, 4


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
    tiles = Tiles.of(window, len(weights))
    constants: list[Stored] = [
        Arranged(weights.astype(np.int8), tiles.order),
        *constants_of(requantization, tiles.pack_channels),
        *epilogue.constants(isa),
    ]
    operations = 2 * window.products * window.channels * len(weights)
    body = Product(tiles, x, Results(y, isa, len(weights), epilogue)).body
    return build("dense_mma", [x, *epilogue.others], constants, y, body, operations, SUM_OF_PRODUCTS)


@dataclass(frozen=True)
class _Thread:
    """Where a thread is: which tile of rows, which panel of columns; its number, its lane and its warp's place."""

    tile: Any
    panel: Any
    number: Any
    lane: Any
    row_warp: Any
    column_warp: Any


@dataclass(frozen=True)
class _Memory:
    """What a block works with. starts: where the rows that a thread copies begin in the input."""

    x: Any
    weights: Any
    shared: Any
    starts: Any


@dataclass(frozen=True)
class Product:
    """One kernel."""

    tiles: Tiles
    x: Layout
    results: Results

    @property
    def _pixels(self) -> int:
        return prod(self.tiles.window.output)

    def body(self, batch: Any, x: Any, *rest: Any) -> None:
        """See `ptqc.codegen.kernels.kernel.write`."""
        tiles, beside = self.tiles, len(self.results.epilogue.others)
        others, (weights, *constants, out) = rest[:beside], rest[beside:]
        total = T.Cast("int32", batch) * self._pixels
        with (
            T.launch_thread("blockIdx.x", T.truncdiv(total + (tiles.rows - 1), tiles.rows)) as tile,
            T.launch_thread("blockIdx.y", T.int32(tiles.panels)) as panel,
            T.launch_thread("threadIdx.x", T.int32(tiles.threads)) as number,
        ):
            warp = T.Bind(T.truncdiv(number, LANES))
            places = (T.truncmod(number, LANES), T.truncdiv(warp, tiles.warps[1]), T.truncmod(warp, tiles.warps[1]))
            thread = _Thread(tile, panel, number, *map(T.Bind, places))
            shared = T.alloc_buffer((tiles.stages * sum(tiles.stage_bytes),), "uint8", scope="shared")
            starts = T.alloc_buffer((self._copied_rows,), "int64", scope="local")
            sums = T.alloc_buffer((ROW_TILES * BLOCKS * SUMS,), "uint32", scope="local")
            for i in range(ROW_TILES * BLOCKS * SUMS):
                T.buffer_store(sums, T.uint32(0), [i])
            last = T.Bind(total - 1)
            self._find_rows(thread, starts, last)
            self._accumulate(thread, _Memory(x, weights, shared, starts), sums)
            self._store(thread, sums, last, constants, others, out)

    @property
    def _copied_rows(self) -> int:
        """Rows of a tile of which one thread copies a piece."""
        return self.tiles.rows * PIECES // self.tiles.threads

    def _place(self, index: Any) -> tuple[Any, Any, Any]:
        """Sample (int64), row and column of a pixel of all samples."""
        width = self.tiles.window.output[1]
        pixel = T.Bind(T.truncmod(index, self._pixels))
        sample = T.Bind(T.Cast("int64", T.truncdiv(index, self._pixels)))
        return sample, T.Bind(T.truncdiv(pixel, width)), T.Bind(T.truncmod(pixel, width))

    def _find_rows(self, thread: _Thread, starts: Any, last: Any) -> None:
        """Where the windows begin whose rows this thread copies; beyond the last pixel, the last one's once more."""
        vertical, horizontal = self.tiles.window.strides
        for i in range(self._copied_rows):
            row = thread.tile * self.tiles.rows + self._copied_row(thread, i)
            sample, above, left = self._place(T.Bind(T.min(row, last)))
            within = T.Cast("int64", self.x.at(above * vertical, left * horizontal, 0))
            T.buffer_store(starts, sample * self.x.stride + within, [i])

    def _copied_row(self, thread: _Thread, i: int) -> Any:
        return T.truncdiv(thread.number, PIECES) + i * (self.tiles.threads // PIECES)

    def _load(self, thread: _Thread, memory: _Memory, step: Any, stage: Any) -> None:
        """Begin the copies of one step; what fills up the last one is multiplied by weights of zero."""
        tiles, window = self.tiles, self.tiles.window
        inputs, weights = tiles.stage_bytes
        piece = T.Bind(T.truncmod(thread.number, PIECES))
        chunk = T.Bind(T.min(step * PIECES + piece, tiles.chunks - 1))
        tap = T.Bind(T.truncdiv(chunk * CHUNK, window.channels))
        down = T.truncdiv(tap, window.kernel[1]) * window.dilations[0]
        right = T.truncmod(tap, window.kernel[1]) * window.dilations[1]
        channels, _, columns = self.x.plane
        moved = (down * columns + right) * channels + T.truncmod(chunk * CHUNK, window.channels)
        offset = T.Bind(T.Cast("int64", moved))
        begin = T.Bind(stage * (inputs + weights))
        for i in range(self._copied_rows):
            row = T.Bind(self._copied_row(thread, i))
            to = begin + row * STEP + T.bitwise_xor(piece, _exchanged(row)) * CHUNK
            source = T.address_of(memory.x[T.int64(0), memory.starts[i] + offset])
            ptx(COPY, T.address_of(memory.shared[to]), source, CHUNK)
        first = (thread.panel * tiles.steps + step) * weights
        for i in range(weights // CHUNK // tiles.threads):
            at = T.Bind((thread.number + i * tiles.threads) * CHUNK)
            source = T.address_of(memory.weights[first + at])
            ptx(COPY, T.address_of(memory.shared[begin + inputs + at]), source, CHUNK)

    def _accumulate(self, thread: _Thread, memory: _Memory, sums: Any) -> None:
        """All steps: the copies of later ones are on their way while the products of one are computed."""
        tiles = self.tiles
        for stage in range(tiles.stages - 1):
            if stage < tiles.steps:
                self._load(thread, memory, stage, stage)
            ptx("cp.async.commit_group")
        inputs = T.alloc_buffer((ROW_TILES * SUMS,), "uint32", scope="local")
        weights = T.alloc_buffer((2,), "uint32", scope="local")
        with T.serial(tiles.steps) as step:
            ptx("cp.async.wait_group", tiles.stages - 2)
            T.evaluate(T.cuda.cta_sync())
            ahead = T.Bind(step + (tiles.stages - 1))
            with T.If(ahead < tiles.steps), T.Then():
                self._load(thread, memory, ahead, T.truncmod(ahead, tiles.stages))
            ptx("cp.async.commit_group")
            begin = T.Bind(T.truncmod(step, tiles.stages) * sum(tiles.stage_bytes))
            for half in range(2):
                self._multiply(thread, memory.shared, begin, half, (inputs, weights, sums))
        ptx("cp.async.wait_all")

    def _multiply(self, thread: _Thread, shared: Any, begin: Any, half: int, registers: tuple[Any, Any, Any]) -> None:
        """Products of 32 bytes of every row."""
        inputs, weights, sums = registers
        for tile in range(ROW_TILES):
            row = T.Bind(thread.row_warp * WARP_TILE + tile * 16 + T.truncmod(thread.lane, 16))
            piece = T.bitwise_xor(half * 2 + T.truncdiv(thread.lane, 16), _exchanged(row))
            address = T.address_of(shared[begin + row * STEP + piece * CHUNK])
            ptx(MATRICES, *(inputs[tile * SUMS + i] for i in range(SUMS)), address)
        for block in range(BLOCKS):
            here = begin + self.tiles.stage_bytes[0] + (thread.column_warp * BLOCKS + block) * (BLOCK * STEP)
            address = T.address_of(shared[here + thread.lane * CHUNK + half * BLOCK])
            ptx("ld.shared.v2.b32", weights[0], weights[1], address)
            for tile in range(ROW_TILES):
                own = [sums[(tile * BLOCKS + block) * SUMS + i] for i in range(SUMS)]
                given = (inputs[tile * SUMS + i] for i in range(SUMS))
                ptx(MULTIPLY, *own, *given, weights[0], weights[1], *own)

    def _store(
        self, thread: _Thread, sums: Any, last: Any, constants: Sequence[Any], others: Sequence[Any], out: Any
    ) -> None:
        """A lane has eight neighbouring channels of four pixels."""
        first = T.Bind(
            thread.panel * self.tiles.columns + thread.column_warp * WARP_TILE + T.truncmod(thread.lane, 4) * BLOCK
        )
        for tile in range(ROW_TILES):
            for below in range(2):
                inside = thread.row_warp * WARP_TILE + tile * 16 + below * 8 + T.truncdiv(thread.lane, 4)
                index = T.Bind(thread.tile * self.tiles.rows + inside)
                with T.If(index <= last), T.Then():
                    place = self._place(index)
                    for group in range(BLOCK // PACKED):
                        # Channel 2·block + e of the lane's eight is sum 2·below + e of that block.
                        own = [
                            sums[(tile * BLOCKS + at // 2) * SUMS + below * 2 + at % 2]
                            for at in range(group * PACKED, (group + 1) * PACKED)
                        ]
                        channel = T.Bind(first + group * PACKED)
                        with T.If(channel < self.tiles.outputs), T.Then():
                            self.results.store(own, (*place, channel), constants, others, out)


def _exchanged(row: Any) -> Any:
    """What the numbers of a row's pieces are exchanged by."""
    return T.bitwise_and(T.truncdiv(row, 2), PIECES - 1)
