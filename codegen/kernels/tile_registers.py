"""Products of registers that hold whole tiles (AMX): inputs as they lie in memory, weights, and sums.

A row of a tile of inputs is a piece of one pixel's run; the next row lies as far behind as the next pixel does, so that
no window is copied. Weights lie as vectors read them: four bytes of each channel are a row of a tile. Vectors get the
sums through memory, which stays in the processor's first cache.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.isa import DOT
from ptqc.codegen.kernels.tiling import Dense
from ptqc.codegen.kernels.writing import span, thread_memory

# Of a configuration: its kind, where the bytes of a row and the rows of each register stand, and how long it is.
PALETTE, ROW_BYTES, ROWS, SIZE = 1, 16, 48, 64
SUM_BYTES = 4
# What sums are, by the bytes of an input.
SUMS = {1: "int32", 2: "float32"}


class TileRegisters:
    """Registers for the sums of a tile and a panel, and for inputs and weights: of the fewer of these all, the others
    follow each other in what is left.

    count: registers that share the pixels, of so many rows each.
    """

    def __init__(self, loops: Dense) -> None:
        assert loops.isa.tile_registers is not None
        self._loops, self._instructions = loops, loops.isa.tile_registers
        self.count, self.rows = loops.tiles_of(loops.cut.pixels)
        self._panel, self._lanes = loops.cut.vectors, loops.isa.lanes
        sums, total = self.count * self._panel, self._instructions.registers
        fewer = sums + min(self.count, self._panel)
        stay, follow = range(sums, fewer), range(fewer, total)
        self._inputs, self._weights = (stay, follow) if self._has_few_inputs else (follow, stay)
        self._memory: Any = None

    @property
    def _has_few_inputs(self) -> bool:
        return self.count < self._panel

    @property
    def configuration(self) -> np.ndarray:
        """What the processor is told of the registers: how many bytes a row of each has, and how many rows."""
        steps = self._loops.links[1]
        shapes = [(self._lanes * SUM_BYTES, self.rows)] * self._instructions.registers
        for register in self._inputs:
            shapes[register] = steps * DOT, self.rows
        for register in self._weights:
            shapes[register] = self._lanes * DOT, steps
        widths, heights = zip(*shapes, strict=True)
        result = np.zeros(SIZE, np.uint8)
        result[0] = PALETTE
        result[ROW_BYTES : ROW_BYTES + 2 * len(shapes)] = np.array(widths, "<u2").view(np.uint8)
        result[ROWS : ROWS + len(shapes)] = heights
        return result

    @contextmanager
    def configured(self, settings: Any) -> Iterator[None]:
        """Configure the registers of the thread that comes here, and release them behind what it does then.

        Each thread has registers of its own, and each kernel another configuration. Once they are released, the system
        need not save them. settings: the buffer with the configuration.
        """
        size, dtype = self.count * self.rows * self._panel * self._lanes, SUMS[self._loops.width]
        with thread_memory(size, dtype) as self._memory:
            self._loops.isa.emit(self._instructions.configure, T.address_of(settings[0]))
            yield
            self._loops.isa.emit(self._instructions.release)

    def start(self, bias: Any, first: Any) -> None:
        """Let the sums of each channel be its bias. first: where those of the panel begin."""
        for i in range(self.count):
            for j in range(self._panel):
                self._load(self._sum(i, j), bias[first + j * self._lanes], 0)

    def add(self, x: Any, place: tuple[Any, Any], pitch: int, w: Any, offset: Any) -> None:
        """Add the products of a step. place: of the first pixel's inputs. pitch: from one pixel to the next."""
        sample, start = place

        def load_inputs(i: int) -> None:
            first = x[sample, start + self.start_of(i, min) * pitch]
            self._load(_in_turn(self._inputs, i), first, pitch * self._loops.width)

        def load_weights(j: int) -> None:
            first = w[offset + j * self._lanes * self._loops.unit]
            self._load(_in_turn(self._weights, j), first, self._panel * self._lanes * DOT)

        def multiply(i: int, j: int) -> None:
            operands = self._sum(i, j), _in_turn(self._inputs, i), _in_turn(self._weights, j)
            self._loops.isa.emit(self._loops.tile.name, *map(T.uint8, operands))

        if self._has_few_inputs:
            for i in range(self.count):
                load_inputs(i)
            for j in range(self._panel):
                load_weights(j)
                for i in range(self.count):
                    multiply(i, j)
            return
        for j in range(self._panel):
            load_weights(j)
        for i in range(self.count):
            load_inputs(i)
            for j in range(self._panel):
                multiply(i, j)

    def start_of(self, index: Any, least: Any) -> Any:
        """The first pixel of a register; the last one begins early enough to be full. least: of two numbers."""
        return least(index * self.rows, self._loops.cut.pixels - self.rows)

    def store_sums(self) -> None:
        """Store the sums in the thread's memory."""
        pitch = T.int64(self._panel * self._lanes * SUM_BYTES)
        for i in range(self.count):
            for j in range(self._panel):
                address = T.address_of(self._memory[self._place(i, 0, j)])
                self._loops.isa.emit(self._instructions.store, T.uint8(self._sum(i, j)), address, pitch)

    def stored_sums(self, index: Any, row: Any) -> list[Any]:
        """Vectors of sums of a panel for a row of a register, once they are stored."""
        return [self._memory[span(self._place(index, row, j), self._lanes)] for j in range(self._panel)]

    def _sum(self, i: int, j: int) -> int:
        return i * self._panel + j

    def _place(self, index: Any, row: Any, j: int) -> Any:
        return ((index * self.rows + row) * self._panel + j) * self._lanes

    def _load(self, register: int, first: Any, pitch: int) -> None:
        self._loops.isa.emit(self._instructions.load, T.uint8(register), T.address_of(first), T.int64(pitch))


def _in_turn(registers: Sequence[int], index: int) -> int:
    return registers[index % len(registers)]
