"""Depthwise convolutions of codes: a thread takes four channels of a pixel, four taps of each in one instruction.

Four taps come as words of four channels; bytes are exchanged among them until each word has the four taps of one
channel, which dp4a multiplies by four weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.coded_layer import CodedLayer
from ptqc.codegen.cuda.results import Results, ptx
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import DOT
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Window

# Bytes of two words: their lower and upper pairs side by side, and the lower and upper halves of two such.
PAIRS, HALVES = (0x5140, 0x7362), (0x5410, 0x7632)


def integer(layer: CodedLayer) -> KernelSource:
    """A layer with one input for each output."""
    window, results = layer.window, layer.results
    constants: list[Stored] = [Arranged(layer.codes, _order(window)), *results.constants(lambda values: values)]
    operations = 2 * window.products * window.channels
    body = Columns(window, layer.x, results).body
    return build("depthwise_dp4a", [layer.x, *results.others], constants, layer.y, body, operations, SUM_OF_PRODUCTS)


def _groups(window: Window) -> int:
    """Groups of four taps."""
    return -(-prod(window.kernel) // DOT)


def _order(window: Window) -> Order:
    """Four channels; group of taps; channel of the four; tap of the group."""
    taps = prod(window.kernel)

    def source(place: Sequence[Any]) -> IndexSource:
        channels, group, channel, tap = place
        along = group * DOT + tap
        return IndexSource((channels * DOT + channel) * taps + along, ((along, taps),))

    return Order((window.channels // DOT, _groups(window), DOT, DOT), source)


@dataclass(frozen=True)
class Columns:
    """One kernel."""

    window: Window
    x: Layout
    results: Results

    def body(self, grid: KernelGrid, x: Any, *buffers: Any) -> None:
        """See `ptqc.codegen.kernels.writing.write`."""
        beside, window = len(self.results.others), self.window
        operands, (weights, *constants, out) = buffers[:beside], buffers[beside:]
        sizes = (*window.output, window.channels // DOT)
        with grid.nest(sizes, window.products * window.channels) as (sample, (row, column, block)):
            words, pairs, taps = (T.alloc_buffer((DOT,), "uint32", scope="local") for _ in range(3))
            sums = T.alloc_buffer((DOT,), "int32", scope="local")
            for i in range(DOT):
                T.buffer_store(sums, T.int32(0), [i])
            channel = T.Bind(block * DOT)
            for group in range(_groups(window)):
                self._read(words, group, lambda at: x[sample, T.ramp(at, 1, DOT)], (row, column, channel))
                for i, exchange in enumerate(PAIRS):
                    ptx("prmt.b32", pairs[2 * i], words[0], words[1], T.uint32(exchange))
                    ptx("prmt.b32", pairs[2 * i + 1], words[2], words[3], T.uint32(exchange))
                first = (block * _groups(window) + group) * (DOT * DOT)
                for i in range(DOT):
                    ptx("prmt.b32", taps[i], pairs[i // 2 * 2], pairs[i // 2 * 2 + 1], T.uint32(HALVES[i % 2]))
                    own = T.reinterpret("int32", weights[T.ramp(first + i * DOT, 1, DOT)])
                    ptx("dp4a.u32.s32", sums[i], taps[i], own, sums[i])
            place = (sample, row, column, channel)
            self.results.store([sums[i] for i in range(DOT)], place, constants, operands, out)

    def _read(self, words: Any, group: int, load: Callable[[Any], Any], place: tuple[Any, Any, Any]) -> None:
        """Four taps of four channels; beyond the last one, zeros."""
        window, (row, column, channel) = self.window, place
        for i in range(DOT):
            tap = group * DOT + i
            if tap >= prod(window.kernel):
                T.buffer_store(words, T.uint32(0), [i])
                continue
            ky, kx = divmod(tap, window.kernel[1])
            above = row * window.strides[0] + ky * window.dilations[0]
            left = column * window.strides[1] + kx * window.dilations[1]
            T.buffer_store(words, T.reinterpret("uint32", load(self.x.at(above, left, channel))), [i])
