"""What kernels for tensor cores have in common: steps of a tile on their way, products of them, sums that are stored.

Inputs and weights come to shared memory a few steps ahead of the products, see `async_copy.py`. Weights stay packed
until a lane has them in registers, see `packed_weights.py`. Where warps share the steps of a tile, the first one adds
up what the others have summed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.async_copy import BlockMemory, Steps, Thread
from ptqc.codegen.cuda.packed_weights import Coding, PairCoding
from ptqc.codegen.cuda.results import Results, ptx
from ptqc.codegen.cuda.tiles import BLOCKS, LANES, SUMS, WARP_COLUMNS, Tiles
from ptqc.codegen.kernels.epilogue import PACKED
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import Layout

MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"


@dataclass(frozen=True)
class Registers:
    """What a thread works with. table: of listed codes or pairs. packed: weights of a unit.

    weights: two registers each, as they are unpacked.
    """

    inputs: Any
    table: Any
    packed: Any
    weights: Sequence[Any]
    sums: Any


@dataclass(frozen=True)
class TiledProduct(ABC):
    """One kernel. coding: of its weights. family: what such kernels are called. pairs: of registers with weights.
    sum_type: of a sum in a register. unroll: whether the loop over steps is, where nvcc is not to decide. behind: steps
    that are still multiplied when the next one begins."""

    tiles: Tiles
    coding: Coding | PairCoding
    x: Layout
    results: Results

    family: ClassVar[str]
    pairs: ClassVar[int]
    sum_type: ClassVar[str] = "uint32"
    unroll: ClassVar[bool | None] = None
    behind: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return self.family

    @property
    @abstractmethod
    def input_words(self) -> int:
        """Registers of a lane for inputs."""

    @abstractmethod
    def multiply(self, thread: Thread, shared: Any, begin: Any, unit: Any, registers: Registers) -> None:
        """Add the products of a unit of the step that begins there."""

    @abstractmethod
    def first_channel(self, lane: Any) -> Any:
        """The first channel that a lane has sums of, among those of its warp."""

    @abstractmethod
    def pixels(self, lane: Any) -> Iterator[tuple[Any, list[int]]]:
        """The rows of its warp that a lane has sums of, and which of its sums are those of neighbouring channels."""

    def shared_memory(self) -> Any:
        """Of a block, for the steps on their way."""
        return T.alloc_buffer((self.tiles.shared_bytes,), "uint8", scope="shared")

    def await_copies(self, left: int) -> None:
        """Wait for the copies of this thread, but for those of so many steps."""
        ptx("cp.async.wait_group", left)

    def await_all(self) -> None:
        """Wait for all that is still on its way."""
        ptx("cp.async.wait_all")

    def build(self, stored: Stored) -> KernelSource:
        """The kernel with its constants. stored: the weights."""
        window, results = self.tiles.window, self.results
        constants: list[Stored] = [
            stored,
            *([] if self.coding.table is None else [self.coding.table]),
            *results.constants(self.tiles.pack_channels),
        ]
        operations = 2 * window.products * window.channels * results.outputs
        inputs = [self.x, *results.others]
        family = results.named(self.name)
        return build(family, inputs, constants, results.y, self.body, operations, results.accuracy)

    @property
    def steps(self) -> Steps:
        """Of a tile."""
        return Steps(self.tiles, self.x)

    @property
    def _sums(self) -> int:
        return self.tiles.cut.row_tiles * BLOCKS * SUMS

    def body(self, grid: KernelGrid, x: Any, *buffers: Any) -> None:
        """See `ptqc.codegen.kernels.writing.write`."""
        tiles, beside = self.tiles, len(self.results.others)
        operands, (weights, *constants, out) = buffers[:beside], buffers[beside:]
        rows, (_, row_warps, column_warps) = tiles.cut.rows, tiles.warps
        total = T.Cast("int32", grid.batch) * prod(tiles.window.output)
        with (
            T.launch_thread("blockIdx.x", T.truncdiv(total + (rows - 1), rows)) as tile,
            T.launch_thread("blockIdx.y", T.int32(tiles.panels)) as panel,
            T.launch_thread("threadIdx.x", T.int32(tiles.threads)) as number,
        ):
            warp = T.Bind(T.truncdiv(number, LANES))
            within = T.Bind(T.truncdiv(warp, column_warps))
            places = (T.truncdiv(within, row_warps), T.truncmod(within, row_warps), T.truncmod(warp, column_warps))
            thread = Thread(tile, panel, number, T.Bind(T.truncmod(number, LANES)), *map(T.Bind, places))
            shared = self.shared_memory()
            starts = T.alloc_buffer((self.steps.copied_rows,), "int64", scope="local")
            registers = self._registers(constants, number)
            last = T.Bind(total - 1)
            self.steps.find_rows(thread, starts, last)
            self._accumulate(thread, BlockMemory(x, weights, shared, starts), registers)
            constants = constants if self.coding.table is None else constants[1:]
            if tiles.cut.shares == 1:
                self._store(thread, registers.sums, last, constants, operands, out)
                return
            self._add_shares(thread, shared, registers.sums)
            with T.If(thread.share == 0), T.Then():
                self._store(thread, registers.sums, last, constants, operands, out)

    def _registers(self, constants: Sequence[Any], number: Any) -> Registers:
        sizes = (self.input_words, self.coding.bits, *[2] * self.pairs)
        inputs, packed, *weights = (T.alloc_buffer((size,), "uint32", scope="local") for size in sizes)
        sums = T.alloc_buffer((self._sums,), self.sum_type, scope="local")
        table = None if self.coding.table is None else self.coding.prepare(constants, number, self.tiles.threads)
        result = Registers(inputs, table, packed, weights, sums)
        for i in range(self._sums):
            T.buffer_store(result.sums, T.Cast(self.sum_type, T.uint32(0)), [i])
        return result

    def _accumulate(self, thread: Thread, memory: BlockMemory, registers: Registers) -> None:
        """All steps: the copies of later ones are on their way while the products of one are computed."""
        tiles, stages = self.tiles, self.tiles.cut.stages
        begun = stages - 1 - self.behind
        for stage in range(begun):
            if stage < tiles.steps:
                self.steps.load(thread, memory, stage, stage)
            ptx("cp.async.commit_group")
        with T.serial(tiles.steps, unroll=self.unroll) as step:
            self.await_copies(begun - 1)
            T.evaluate(T.cuda.cta_sync())
            ahead = T.Bind(step + begun)
            with T.If(ahead < tiles.steps), T.Then():
                self.steps.load(thread, memory, ahead, T.truncmod(ahead, stages))
            ptx("cp.async.commit_group")
            begin = T.Bind(T.truncmod(step, stages) * self.tiles.step_bytes)
            own = tiles.units // tiles.cut.shares
            first = thread.share * own if tiles.cut.shares > 1 else 0
            for unit in range(own):
                self.multiply(thread, memory.shared, begin, first + unit, registers)
        self.await_all()
        for i in range(self._sums if self.coding.shift else 0):
            scaled = T.shift_right(T.reinterpret("int32", registers.sums[i]), T.int32(self.coding.shift))
            T.buffer_store(registers.sums, T.reinterpret("uint32", scaled), [i])

    def _add_shares(self, thread: Thread, shared: Any, sums: Any) -> None:
        """Give the sums of all shares to the first one; they lie where the steps did, which all warps have read."""
        words = T.decl_buffer((self.tiles.shared_bytes // 4,), self.sum_type, data=shared.data, scope="shared")
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
        self, thread: Thread, sums: Any, last: Any, constants: Sequence[Any], operands: Sequence[Any], out: Any
    ) -> None:
        """What a lane has of each pixel, PACKED neighbouring channels at a time."""
        first = T.Bind(
            thread.panel * self.tiles.cut.columns + thread.column_warp * WARP_COLUMNS + self.first_channel(thread.lane)
        )
        for row, own in self.pixels(thread.lane):
            inside = thread.row_warp * self.tiles.warp_rows + row
            index = T.Bind(thread.tile * self.tiles.cut.rows + inside)
            with T.If(index <= last), T.Then():
                place = self.steps.place(index)
                for group in range(0, len(own), PACKED):
                    channel = T.Bind(first + group)
                    with T.If(channel < self.tiles.outputs), T.Then():
                        results = [sums[at] for at in own[group : group + PACKED]]
                        self.results.store(results, (*place, channel), constants, operands, out)
