"""Convolutions with any window, stride, dilation and groups, and products with a matrix: one register-blocked kernel.

A tile of neighbouring output pixels times a panel of output channels stays in registers while the kernel runs over the
window. The input is padded already and has its channels last, so that a row of the window is one run of bytes as long
as nothing lies between its taps; no window is ever copied. Weights lie in the order in which the loops read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.tvm.constants import Arranged, Order, Scaled, Source, Stored
from ptqc.codegen.tvm.families import Built, build
from ptqc.codegen.tvm.isa import DOT, Isa
from ptqc.codegen.tvm.kernel import fill, rows, span, to_codes, vector
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.window import Window

LARGEST_TILE, LARGEST_PANEL = 14, 4
# Weights beyond this stay in a core's second cache from one tile to the next only if panels are the outer loop.
CACHED_WEIGHTS = 512 * 1024
SEVEN_BITS = 64


@dataclass(frozen=True)
class Dense:
    """The loops of one layer. width: bytes of one input number (1: codes, 4: float32). parts: 2 for halved weights."""

    window: Window
    outputs: int
    groups: int
    isa: Isa
    width: int
    parts: int = 1

    @property
    def unit(self) -> int:
        """Inputs taken at once."""
        return DOT if self.width == 1 else 1

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.window.channels // self.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of a group."""
        return self.outputs // self.groups

    @property
    def runs(self) -> tuple[int, int, int]:
        """Rows and columns of the window that are runs of their own, and inputs in a run."""
        rows, columns = self.window.kernel
        if self.groups == 1 and (self.window.dilations[1] == 1 or columns == 1):
            return rows, 1, columns * self.window.channels
        return rows, columns, self.group_inputs

    @property
    def depth(self) -> int:
        """Units in a run."""
        return -(-self.runs[2] // self.unit)

    @property
    def area(self) -> tuple[int, int]:
        """Output rows and columns; a pointwise layer sees one row."""
        height, width = self.window.output
        return (1, height * width) if self.window.is_pointwise and self.groups == 1 else (height, width)

    @cached_property
    def blocking(self) -> tuple[int, int]:
        """Pixels in a tile and vectors in a panel: the most products per loaded number."""
        vectors = -(-self.group_outputs // self.isa.lanes)
        panels = [p for p in range(1, LARGEST_PANEL + 1) if vectors % p == 0]
        shapes = [(min(self.isa.accumulators // p, LARGEST_TILE, self.area[1]), p) for p in panels]
        pixels, panel = max(shapes, key=lambda shape: (shape[0] * shape[1] / (shape[0] + shape[1]), shape))
        tiles = -(-self.area[1] // pixels)
        return -(-self.area[1] // tiles), panel

    @property
    def panels(self) -> int:
        """Panels of a group."""
        return -(-self.group_outputs // (self.isa.lanes * self.blocking[1]))

    @property
    def panel_size(self) -> int:
        """Weights of a panel."""
        rows, columns, _ = self.runs
        return rows * columns * self.depth * self.parts * self.blocking[1] * self.isa.lanes * self.unit

    @property
    def order(self) -> Order:
        """Of weights (outputs, inputs of a group, *kernel): group, panel, run, unit, part, channel, tap."""
        rows, columns, _ = self.runs
        width = self.blocking[1] * self.isa.lanes
        return Order((self.groups, self.panels, rows, columns, self.depth, self.parts, width, self.unit), self._source)

    def _source(self, place: Sequence[Any]) -> Source:
        group, panel, row, column, step, part, channel, tap = place
        output = panel * (self.blocking[1] * self.isa.lanes) + channel
        along = step * self.unit + tap
        column = column + along // self.group_inputs
        plane = (group * self.group_outputs + output) * self.group_inputs + along % self.group_inputs
        offset = (plane * self.window.kernel[0] + row) * self.window.kernel[1] + column
        limits = (output, self.group_outputs), (along, self.runs[2])
        return Source(offset, limits, part if self.parts > 1 else None)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """One number per output channel in the order of the panels."""
        width = self.panels * self.blocking[1] * self.isa.lanes
        grouped = values.reshape(self.groups, self.group_outputs)
        return np.pad(grouped, ((0, 0), (0, width - self.group_outputs))).reshape(-1)


def parts(isa: Isa, weights: np.ndarray) -> int:
    """2 where products of these weights with codes would overflow the sums of the instruction set."""
    return 2 if isa.halves and (weights.min(initial=0) < -SEVEN_BITS or weights.max(initial=0) >= SEVEN_BITS) else 1


def integer(
    x: Layout, y: Layout, loops: Dense, weights: np.ndarray, bias: np.ndarray, factor: np.ndarray, zero_point: int
) -> Built:
    """Codes x times int8 weights; y is codes, or real values when it is float32.

    bias: int32 (outputs), with the input's zero point already in it. factor: float32 (outputs), s_x · s_w / s_y or
    s_x · s_w.
    """
    constants: list[Stored] = [
        Arranged(weights.astype(np.int8), loops.order),
        loops.pack_channels(bias.astype(np.int32)),
        loops.pack_channels(factor.astype(np.float32)),
        np.array([zero_point], np.float32),
    ]
    lanes = loops.isa.lanes

    def settle(total: Any, channel: Any, factors: Any, zero: Any) -> Any:
        real = T.Cast(vector("float32", lanes), total) * factors[span(channel, lanes)]
        return real if y.dtype == "float32" else to_codes(T.nearbyint(real) + fill(zero[0], lanes), lanes)

    return build("dense", [x], constants, y, _body(loops, y, settle))


def real(x: Layout, y: Layout, loops: Dense, weights: np.ndarray | Scaled, bias: np.ndarray) -> Built:
    """The same in float32; weights may be codes and scales that are packed already."""
    ready = weights if isinstance(weights, Scaled) else loops.order(weights.astype(np.float32))
    constants = [ready, loops.pack_channels(bias.astype(np.float32))]
    return build("dense_float", [x], constants, y, _body(loops, y, lambda total, _channel: total))


def _body(loops: Dense, y: Layout, settle: Any) -> Any:
    height, width = loops.area
    pixels, panel = loops.blocking
    tiles, panels = height * -(-width // pixels), loops.groups * loops.panels
    by_panel = panels * loops.panel_size * loops.width > CACHED_WEIGHTS and panels > 1
    outer, inner = (panels, tiles) if by_panel else (tiles, panels)
    work = loops.window.products * loops.outputs * loops.group_inputs

    def body(batch: Any, x: Any, w: Any, bias: Any, *rest: Any) -> None:
        *numbers, out = rest
        with rows(batch, outer, work) as (sample, first), T.serial(inner) as second:
            tile, group_panel = (second, first) if by_panel else (first, second)
            row = tile // (tiles // height)
            column = T.Bind(T.min(tile % (tiles // height) * pixels, width - pixels))
            group = group_panel // loops.panels
            totals = _accumulate(loops, x, w, bias, sample, (row, column), group, group_panel)
            for p in range(pixels):
                for j in range(panel):
                    channel = group_panel * panel * loops.isa.lanes + j * loops.isa.lanes
                    value = settle(totals(p, j), channel, *numbers)
                    inside = group_panel % loops.panels * panel * loops.isa.lanes + j * loops.isa.lanes
                    place = (row * width + column + p) * loops.outputs + group * loops.group_outputs + inside
                    _store(loops, out, y.dtype, sample, place, value, inside, is_last=j == panel - 1)

    return body


def _accumulate(
    loops: Dense, x: Any, w: Any, bias: Any, sample: Any, pixel: tuple[Any, Any], group: Any, group_panel: Any
) -> Any:
    """Sums of a tile and a panel, as a function of pixel and vector."""
    lanes, (pixels, panel) = loops.isa.lanes, loops.blocking
    dtype = "int32" if loops.width == 1 else "float32"
    totals = T.alloc_buffer((pixels * panel * lanes,), dtype, scope="local")

    def at(p: int, j: int) -> Any:
        return span((p * panel + j) * lanes, lanes)

    for p in range(pixels):
        for j in range(panel):
            start = bias[span((group_panel * panel + j) * lanes, lanes)]
            T.buffer_store(totals, start, [at(p, j)])
    window, (run_rows, run_columns, _) = loops.window, loops.runs
    step = window.strides[1] if not (window.is_pointwise and loops.groups == 1) else 1
    with T.serial(run_rows) as ky, T.serial(run_columns) as kx, T.serial(loops.depth) as k:
        above = pixel[0] * window.strides[0] + ky * window.dilations[0]
        left = pixel[1] * step + kx * window.dilations[1]
        start = (above * window.size[1] + left) * window.channels + group * loops.group_inputs + k * loops.unit
        taps = ((ky * run_columns + kx) * loops.depth + k) * loops.parts
        for part in range(loops.parts):
            for p in range(pixels):
                for j in range(panel):
                    weight = group_panel * loops.panel_size
                    weight += ((taps + part) * panel + j) * lanes * loops.unit
                    place = (sample, start + p * step * window.channels)
                    T.buffer_store(totals, _product(loops, totals[at(p, j)], x, place, w, weight), [at(p, j)])
    return lambda p, j: totals[at(p, j)]


def _product(loops: Dense, total: Any, x: Any, place: tuple[Any, Any], w: Any, weight: Any) -> Any:
    if loops.width == 1:
        return loops.isa.dot(total, x, place, w, weight)
    return total + fill(x[place[0], place[1]], loops.isa.lanes) * w[span(weight, loops.isa.lanes)]


def _store(
    loops: Dense, out: Any, dtype: str, sample: Any, place: Any, value: Any, inside: Any, *, is_last: bool
) -> None:
    """Store a vector of channels; of the last one only those that exist."""
    lanes = loops.isa.lanes
    if not is_last or loops.group_outputs % lanes == 0:
        T.buffer_store(out, value, [sample, span(place, lanes)])
        return
    left = loops.group_outputs % lanes
    scratch = T.alloc_buffer((lanes,), dtype, scope="local")
    T.buffer_store(scratch, value, [span(0, lanes)])
    count = T.min(lanes, loops.group_outputs - inside) if loops.panels > 1 else left
    with T.serial(count) as lane:
        T.buffer_store(out, scratch[lane], [sample, place + lane])
