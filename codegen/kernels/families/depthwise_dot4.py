"""Depthwise convolutions of codes by columns of the window: four taps below each other are one inner product.

The rows of a column are interleaved byte by byte, once for all the outputs that the column takes part in. That leaves
channels in the order that saturating packs undo, so nothing is permuted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import PACKED, PART, Epilogue, fits, requantize
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.int16_accumulation import Int16Accumulation
from ptqc.codegen.kernels.isa import DOT, Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, fill, pieces, span, vector
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Window

PART_BYTES = 16
# The input, its layout, and which sample, row, column and channel of the output begin there.
Place = tuple[Any, Layout, Any, Any, Any, Any]


@dataclass(frozen=True)
class ColumnLoops:
    """The loops of one layer."""

    window: Window
    isa: Isa
    accumulation: Int16Accumulation

    @property
    def wide(self) -> int:
        """Channels in a block: a vector of bytes."""
        return PACKED * self.isa.lanes

    @property
    def starts(self) -> list[int]:
        """The first channel of every block; the last two may overlap."""
        last = max(self.window.channels - self.wide, 0)
        return [*range(0, last, self.wide), last]

    @property
    def heights(self) -> int:
        """Inner products that a column of the window takes."""
        return -(-self.window.kernel[0] // DOT)

    @property
    def pixels(self) -> int:
        """Output pixels in a tile: their sums fill about half of the registers."""
        width, most = self.window.output[1], self.isa.registers // (2 * PACKED)
        return -(-width // -(-width // most))

    @property
    def order(self) -> np.ndarray:
        """Channel of a block for (vector of sums, lane): what interleaving makes of them."""
        parts = np.arange(self.wide).reshape(-1, PACKED, PART)
        return parts.transpose(1, 0, 2).reshape(PACKED, self.isa.lanes)

    @property
    def weight_order(self) -> Order:
        """Order of weights (channels, *kernel): block, column, inner product, part, vector of sums, lane, tap."""
        blocks, columns = len(self.starts), self.window.kernel[1]
        sizes = (blocks, columns, self.heights, self.accumulation.parts, PACKED, self.isa.lanes, DOT)
        return Order(sizes, self._source)

    def _source(self, place: Sequence[Any]) -> IndexSource:
        block, column, product, part, total, lane, tap = place
        tall, wide = self.window.kernel
        last = len(self.starts) - 1
        overlap = last * self.wide - self.starts[-1]
        channel = block * self.wide - block // max(last, 1) * overlap
        channel = channel + (lane // PART * PACKED + total) * PART + lane % PART
        row = product * DOT + tap
        limits = (channel, self.window.channels), (row, tall)
        return IndexSource(
            (channel * tall + row) * wide + column, limits, part if self.accumulation.parts > 1 else None
        )

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per channel: block, vector of sums, lane."""
        padded = np.pad(values, (0, self.wide))
        return np.stack([padded[start : start + self.wide][self.order] for start in self.starts]).reshape(-1)


def takes(window: Window, isa: Isa) -> bool:
    """Whether there are packs, channels that fill a part of a vector, and columns, or single taps, to speak of."""
    worth = window.kernel[0] > 1 or window.kernel == (1, 1)
    return isa.packs is not None and isa.multiplies_bytes and worth and window.channels >= PART_BYTES


def fitting_isa(isa: Isa, channels: int) -> Isa:
    """The instruction set with vectors of half the length where the whole ones would be half empty."""
    whole = PACKED * isa.lanes
    return isa.half if isa.half is not None and -channels % whole >= whole // 2 else isa


def integer(layer: LayerSpec, loops: ColumnLoops) -> KernelSource:
    """A depthwise layer of codes; its weights are (channels, 1, *kernel)."""
    x, y, weights, requantization, epilogue = layer.x, layer.y, layer.weights, layer.requantization, layer.epilogue
    codes = weights.astype(np.int8)
    constants: list[Stored] = [
        Arranged(codes, loops.weight_order),
        loops.pack_channels(loops.isa.signed_bias(requantization.bias.astype(np.int32), codes)),
        loops.pack_channels(requantization.factor.astype(np.float32)),
        np.array([requantization.zero_point], np.float32),
        *epilogue.constants(loops.isa),
    ]
    body = _body(loops, x, y, epilogue, is_fitting=fits(weights, requantization.bias, requantization.factor))
    operations = 2 * loops.window.products * loops.window.channels
    return build("depthwise", [x, *epilogue.others], constants, y, body, operations, SUM_OF_PRODUCTS)


def _body(loops: ColumnLoops, source: Layout, target: Layout, epilogue: Epilogue, *, is_fitting: bool) -> Any:
    window, pixels, (height, width) = loops.window, loops.pixels, loops.window.output
    work, beside = window.products * window.channels // DOT, len(epilogue.others)

    def body(grid: KernelGrid, x: Any, *buffers: Any) -> None:
        operands, (w, bias, factor, zero, *numbers, out) = buffers[:beside], buffers[beside:]
        with grid.nest((height, -(-width // pixels), len(loops.starts)), work) as (sample, (row, tile, block)):
            column = T.Bind(T.min(tile * pixels, width - pixels))
            channel = T.Bind(T.min(block * loops.wide, loops.starts[-1]))
            totals = _started(loops, grid, bias, block)
            _accumulate(loops, totals, (x, source, sample, row, column, channel), w, block)
            for p in range(pixels):
                codes = grid.registers(loops.wide, "uint8")
                _settle(loops, totals[p], (factor, zero), block, codes, is_fitting=is_fitting)
                places = [(sample, row, column + p, channel + q * loops.isa.lanes) for q in range(PACKED)]
                epilogue.apply(loops.isa, codes, places, numbers, operands)
                place = target.at(row, column + p, channel)
                for start, length in pieces(min(window.channels, loops.wide), loops.wide):
                    T.buffer_store(out, codes[span(start, length)], [sample, span(place + start, length)])

    return body


def _started(loops: ColumnLoops, grid: KernelGrid, bias: Any, block: Any) -> list[list[Any]]:
    """Sums of a tile, by pixel and vector."""
    lanes = loops.isa.lanes
    totals = [[grid.registers(lanes, "int32") for _ in range(PACKED)] for _ in range(loops.pixels)]
    for row in totals:
        for q, total in enumerate(row):
            T.buffer_store(total, bias[span(block * loops.wide + q * lanes, lanes)], [span(0, lanes)])
    return totals


def _accumulate(loops: ColumnLoops, totals: list[list[Any]], place: Place, w: Any, block: Any) -> None:
    """Add what every column of the input brings to the pixels of a tile."""
    window, (_, stride) = loops.window, loops.window.strides
    uses: dict[int, list[tuple[int, int]]] = {}
    for p in range(loops.pixels):
        for kx in range(window.kernel[1]):
            uses.setdefault(p * stride + kx * window.dilations[1], []).append((p, kx))
    for left in sorted(uses):
        for height in range(loops.heights):
            for q, taps in enumerate(_column(loops, place, left, height)):
                value = T.Bind(taps)
                for p, kx in uses[left]:
                    _add(loops, totals[p][q], value, w, (block, kx, height, q))


def _add(loops: ColumnLoops, total: Any, taps: Any, w: Any, place: tuple[Any, int, int, int]) -> None:
    block, kx, height, q = place
    at, columns = span(0, loops.isa.lanes), loops.window.kernel[1]
    for part in range(loops.accumulation.parts):
        vectors = ((block * columns + kx) * loops.heights + height) * loops.accumulation.parts + part
        weights = loops.isa.weights(w, (vectors * PACKED + q) * loops.wide)
        T.buffer_store(total, loops.isa.add_products(total[at], taps, weights), [at])


def _column(loops: ColumnLoops, place: Place, left: int, height: int) -> list[Any]:
    """Up to four rows of a column of the input, interleaved: four neighbouring bytes are one channel's taps."""
    x, layout, sample, row, column, channel = place
    window = loops.window
    taps = []
    for ky in range(height * DOT, (height + 1) * DOT):
        above = row * window.strides[0] + ky * window.dilations[0]
        beside = column * window.strides[1] + left
        start = layout.at(above, beside, channel)
        missing = ky >= window.kernel[0]
        taps.append(
            fill(T.uint8(0), loops.wide) if missing else T.Bind(loops.isa.as_inputs(x[sample, span(start, loops.wide)]))
        )
    pairs = [_halves(taps[0], taps[1], "uint8", loops.wide), _halves(taps[2], taps[3], "uint8", loops.wide)]
    words = [_halves(a, b, "uint16", loops.wide // 2) for a, b in zip(*pairs, strict=True)]
    return [T.reinterpret(vector("uint8", loops.wide), half) for pair in words for half in pair]


def _halves(a: Any, b: Any, dtype: str, count: int) -> tuple[Any, Any]:
    """The lower and the upper half of each part of two vectors, element by element in turn."""
    part = PART_BYTES // np.dtype(dtype).itemsize
    sources = [T.reinterpret(vector(dtype, count), a), T.reinterpret(vector(dtype, count), b)]

    def turns(first: int) -> Any:
        places = [start + first + i for start in range(0, count, part) for i in range(part // 2)]
        return T.Shuffle(sources, [T.int32(i + other * count) for i in places for other in (0, 1)])

    return turns(0), turns(part // 2)


def _settle(loops: ColumnLoops, totals: list[Any], numbers: Any, block: Any, codes: Any, *, is_fitting: bool) -> None:
    """Store the codes of a pixel."""
    (factor, zero), lanes = numbers, loops.isa.lanes
    values = [
        T.Cast(vector("float32", lanes), total[span(0, lanes)]) * factor[span(block * loops.wide + q * lanes, lanes)]
        for q, total in enumerate(totals)
    ]
    requantize(loops.isa, values, zero[0], codes, fitting=is_fitting, transposed=True)
