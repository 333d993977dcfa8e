"""The steps of a tile on their way to shared memory: rows of inputs and packed weights, by asynchronous copies.

Rows of inputs lie there with their pieces of 16 bytes exchanged among each other (by bits of the row's number), so that
the eight rows that ldmatrix reads at a time lie in different banks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.results import held, ptx
from ptqc.codegen.cuda.tiles import CHUNK, STEP, Tiles
from ptqc.codegen.program.layout import Layout

COPY = "cp.async.cg.shared.global"
# Pieces of a row in a step.
PIECES = STEP // CHUNK


@dataclass(frozen=True)
class Thread:
    """Where a thread is: which tile of rows, which panel of columns; its number, its lane and its warp's place."""

    tile: Any
    panel: Any
    number: Any
    lane: Any
    share: Any
    row_warp: Any
    column_warp: Any


@dataclass(frozen=True)
class BlockMemory:
    """What a block works with. starts: where the rows that a thread copies begin in the input."""

    x: Any
    weights: Any
    shared: Any
    starts: Any


@dataclass(frozen=True)
class Steps:
    """The steps of a tile in shared memory: of each first the inputs, then the weights."""

    tiles: Tiles
    x: Layout

    @property
    def copied_rows(self) -> int:
        """The most rows of which one thread copies a piece."""
        return self._turns(self.tiles.cut.rows * PIECES)

    def place(self, index: Any) -> tuple[Any, Any, Any]:
        """Sample (int64), row and column of a pixel of all samples."""
        (_, width), pixels = self.tiles.window.output, prod(self.tiles.window.output)
        pixel = T.Bind(T.truncmod(index, pixels))
        sample = T.Bind(T.Cast("int64", held(T.truncdiv(index, pixels))))
        return sample, held(T.truncdiv(pixel, width)), held(T.truncmod(pixel, width))

    def find_rows(self, thread: Thread, starts: Any, last: Any) -> None:
        """Where the windows begin whose rows this thread copies; beyond the last pixel, the last one's once more."""
        vertical, horizontal = self.tiles.window.strides
        for i in range(self.copied_rows):
            row = thread.tile * self.tiles.cut.rows + self._copied_row(thread, i)
            sample, above, left = self.place(T.Bind(T.min(row, last)))
            within = T.Cast("int64", self.x.at(above * vertical, left * horizontal, 0))
            T.buffer_store(starts, sample * self.x.stride + within, [i])

    def load(self, thread: Thread, memory: BlockMemory, step: Any, stage: Any) -> None:
        """Begin the copies of one step; zeros fill up the last one."""
        tiles, window = self.tiles, self.tiles.window
        piece = T.Bind(T.truncmod(thread.number, PIECES))
        index = T.Bind(step * PIECES + piece)
        chunk = T.Bind(T.min(index, tiles.chunks - 1))
        taken = (
            []
            if tiles.depth % STEP == 0
            else [T.Bind(T.if_then_else(index < tiles.chunks, T.uint32(CHUNK), T.uint32(0)))]
        )
        tap = T.Bind(T.truncdiv(chunk * CHUNK, window.channels))
        down = T.truncdiv(tap, window.kernel[1]) * window.dilations[0]
        right = T.truncmod(tap, window.kernel[1]) * window.dilations[1]
        channels, _, columns = self.x.plane
        moved = (down * columns + right) * channels + T.truncmod(chunk * CHUNK, window.channels)
        offset = T.Bind(T.Cast("int64", held(moved)))
        begin = T.Bind(stage * tiles.step_bytes)
        for i in range(self.copied_rows):
            row = T.Bind(self._copied_row(thread, i))
            with self._where(row * PIECES + piece, i, tiles.cut.rows * PIECES):
                to = begin + row * STEP + T.bitwise_xor(piece, exchanged(row)) * CHUNK
                source = T.address_of(memory.x[T.int64(0), memory.starts[i] + offset])
                ptx(COPY, T.address_of(memory.shared[to]), source, CHUNK, *taken)
        pieces, first = tiles.weight_bytes // CHUNK, (thread.panel * tiles.steps + step) * tiles.weight_bytes
        for i in range(self._turns(pieces)):
            index = T.Bind(thread.number + i * tiles.threads)
            with self._where(index, i, pieces):
                source = T.address_of(memory.weights[first + index * CHUNK])
                ptx(COPY, T.address_of(memory.shared[begin + tiles.input_bytes + index * CHUNK]), source, CHUNK)

    def _copied_row(self, thread: Thread, i: int) -> Any:
        return T.truncdiv(thread.number, PIECES) + i * (self.tiles.threads // PIECES)

    def _turns(self, pieces: int) -> int:
        """How often all threads copy a piece until all are copied."""
        return -(-pieces // self.tiles.threads)

    @contextmanager
    def _where(self, index: Any, i: int, pieces: int) -> Iterator[None]:
        """For the pieces that exist, where in the last turn not every thread has one. i: of the turn."""
        if (i + 1) * self.tiles.threads <= pieces:
            yield
            return
        with T.If(index < pieces), T.Then():
            yield


def exchanged(row: Any) -> Any:
    """What the numbers of a row's pieces are exchanged by."""
    return T.bitwise_and(T.truncdiv(row, 2), PIECES - 1)
