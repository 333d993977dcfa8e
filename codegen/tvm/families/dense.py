"""Convolutions with any window, stride, dilation and groups, and products with a matrix: one register-blocked kernel.

A tile of neighbouring output pixels times a panel of output channels stays in registers while the kernel runs over the
window. The input is padded already and has its channels last, so that a row of the window is one run of bytes as long
as nothing lies between its taps; no window is ever copied. Weights lie in the order in which the loops read them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.tvm import narrowing
from ptqc.codegen.tvm.constants import Arranged, Scaled, Stored
from ptqc.codegen.tvm.families import Built, build
from ptqc.codegen.tvm.kernel import PRODUCTS, fill, pieces, registers, rows, span, vector
from ptqc.codegen.tvm.layout import Layout
from ptqc.codegen.tvm.tiling import Dense

# Weights beyond this stay in a core's second cache from one tile to the next only if panels are the outer loop.
CACHED_WEIGHTS = 512 * 1024

# By pixel, by vector of the panel.
Totals = Sequence[Sequence[Any]]
# Of unit, part of the weight, pixel and vector: input, place in it, weights, place in them.
Operands = Callable[[Any, int, int, int], tuple[Any, Any, Any, Any]]
# A local buffer, and where in it the channels of a pixel begin.
Made = tuple[Any, int]


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
    lanes, fitting = loops.isa.lanes, narrowing.fits(weights, bias, factor)

    def settle(totals: Sequence[Any], channels: Sequence[Any], out: Any, factors: Any, zero: Any) -> None:
        scales = [factors[span(channel, lanes)] for channel in channels]
        values = [T.Cast(vector("float32", lanes), t) * s for t, s in zip(totals, scales, strict=True)]
        if y.dtype == "float32":
            _keep(values, lanes, out)
        else:
            narrowing.narrow(loops.isa, values, zero[0], out, fitting=fitting)

    return build("dense", [x], constants, y, _body(loops, y, settle), 2 * loops.products)


def real(x: Layout, y: Layout, loops: Dense, weights: np.ndarray | Scaled, bias: np.ndarray) -> Built:
    """The same in float32; weights may be codes and scales that are packed already."""
    ready = weights if isinstance(weights, Scaled) else loops.order(weights.astype(np.float32))
    constants = [ready, loops.pack_channels(bias.astype(np.float32))]

    def settle(totals: Sequence[Any], _channels: Sequence[Any], out: Any) -> None:
        _keep(totals, loops.isa.lanes, out)

    return build("dense_float", [x], constants, y, _body(loops, y, settle), 2 * loops.products)


def _keep(values: Sequence[Any], lanes: int, out: Any) -> None:
    for place, value in enumerate(values):
        T.buffer_store(out, value, [span(place * lanes, lanes)])


def _body(loops: Dense, y: Layout, settle: Any) -> Any:
    height, width = loops.area
    pixels, panel = loops.blocking
    tiles, panels = height * -(-width // pixels), loops.groups * loops.panels
    by_panel = panels * loops.panel_size * loops.width > CACHED_WEIGHTS and panels > 1
    outer, inner = (panels, tiles) if by_panel else (tiles, panels)

    def body(batch: Any, x: Any, w: Any, bias: Any, *rest: Any) -> None:
        *numbers, out = rest
        with rows(batch, outer, loops.products // PRODUCTS) as (sample, first), T.serial(inner) as second:
            tile, group_panel = (second, first) if by_panel else (first, second)
            row = tile // (tiles // height)
            column = T.Bind(T.min(tile % (tiles // height) * pixels, width - pixels))
            group = group_panel // loops.panels
            totals = _accumulate(loops, x, w, bias, sample, (row, column), group, group_panel)
            made = _settled(loops, totals, group_panel * panel * loops.isa.lanes, y.dtype, settle, numbers)
            inside = group_panel % loops.panels * panel * loops.isa.lanes
            place = (row * width + column) * loops.outputs + group * loops.group_outputs + inside
            _store(loops, made, out, sample, place, group_panel % loops.panels)

    return body


def _accumulate(
    loops: Dense, x: Any, w: Any, bias: Any, sample: Any, pixel: tuple[Any, Any], group: Any, group_panel: Any
) -> Totals:
    """Sums of a tile and a panel."""
    lanes, (pixels, panel) = loops.isa.lanes, loops.blocking
    dtype, at = "int32" if loops.width == 1 else "float32", span(0, lanes)
    totals = [[registers(lanes, dtype) for _ in range(panel)] for _ in range(pixels)]
    for row in totals:
        for j, total in enumerate(row):
            T.buffer_store(total, bias[span((group_panel * panel + j) * lanes, lanes)], [at])
    window, (run_rows, run_columns, _) = loops.window, loops.runs
    step = window.strides[1] if not (window.is_pointwise and loops.groups == 1) else 1
    with T.serial(run_rows) as ky, T.serial(run_columns) as kx, T.serial(loops.links[0]) as link:
        above = pixel[0] * window.strides[0] + ky * window.dilations[0]
        left = pixel[1] * step + kx * window.dilations[1]
        start = (above * window.size[1] + left) * window.channels + group * loops.group_inputs
        run = ky * run_columns + kx

        def operands(k: Any, part: int, p: int, j: int) -> tuple[Any, Any, Any, Any]:
            taps = (run * loops.depth + k) * loops.sums.parts + part
            weight = group_panel * loops.panel_size + (taps * panel + j) * lanes * loops.unit
            return x, (sample, start + k * loops.unit + p * step * window.channels), w, weight

        (_chain if loops.sums.chain > 1 else _units)(loops, totals, link * loops.links[1], operands)
    return [[total[at] for total in row] for row in totals]


def _units(loops: Dense, totals: Totals, first: Any, operands: Operands) -> None:
    """Add products unit by unit."""
    at = span(0, loops.isa.lanes)
    with T.serial(loops.links[1]) as k:
        for part in range(loops.sums.parts):
            for p, row in enumerate(totals):
                for j, total in enumerate(row):
                    T.buffer_store(total, _product(loops, total[at], *operands(first + k, part, p, j)), [at])


def _chain(loops: Dense, totals: Totals, first: Any, operands: Operands) -> None:
    """Add products of a chain in 16 bits, then their sums."""
    at, words_at = span(0, loops.isa.lanes), span(0, 2 * loops.isa.lanes)
    words = [[registers(2 * loops.isa.lanes, "int16") for _ in row] for row in totals]
    for row in words:
        for word in row:
            T.buffer_store(word, fill(T.int16(0), 2 * loops.isa.lanes), [words_at])
    with T.serial(loops.links[1]) as k:
        for p, row in enumerate(words):
            for j, word in enumerate(row):
                inputs, place, weights, offset = operands(first + k, 0, p, j)
                found = loops.isa.words(loops.isa.taps(inputs, place), loops.isa.weights(weights, offset))
                T.buffer_store(word, word[words_at] + found, [words_at])
    for row, sums in zip(words, totals, strict=True):
        for word, total in zip(row, sums, strict=True):
            T.buffer_store(total, total[at] + loops.isa.widen(word[words_at]), [at])


def _product(loops: Dense, total: Any, x: Any, place: tuple[Any, Any], w: Any, weight: Any) -> Any:
    if loops.width == 1:
        return loops.isa.dot(total, x, place, w, weight)
    return total + fill(x[place[0], place[1]], loops.isa.lanes) * w[span(weight, loops.isa.lanes)]


def _settled(loops: Dense, totals: Totals, channel: Any, dtype: str, settle: Any, numbers: Sequence[Any]) -> list[Made]:
    """What is to be stored of each pixel of a tile. As many pixels are settled at once as fill a vector of codes."""
    lanes, (pixels, panel) = loops.isa.lanes, loops.blocking
    channels, together = [channel + j * lanes for j in range(panel)], max(1, narrowing.PACKED // panel)
    found: list[Made] = []
    for start in range(0, pixels, together):
        group = totals[start : start + together]
        made = registers(narrowing.PACKED * lanes, dtype)
        settle([total for row in group for total in row], channels * len(group), made, *numbers)
        found += [(made, place * panel * lanes) for place in range(len(group))]
    return found


def _store(loops: Dense, made: Sequence[Made], out: Any, sample: Any, place: Any, panel: Any) -> None:
    """Store a tile; of the last panel only the channels that exist."""
    whole = loops.blocking[1] * loops.isa.lanes
    rest = loops.group_outputs - (loops.panels - 1) * whole
    if loops.panels == 1 or rest == whole:
        _store_channels(loops, made, out, sample, place, rest)
        return
    with T.If(panel == loops.panels - 1):
        with T.Then():
            _store_channels(loops, made, out, sample, place, rest)
        with T.Else():
            _store_channels(loops, made, out, sample, place, whole)


def _store_channels(loops: Dense, made: Sequence[Made], out: Any, sample: Any, place: Any, count: int) -> None:
    """Store the first channels of every pixel of a tile."""
    for p, (buffer, first) in enumerate(made):
        for start, length in pieces(count, loops.isa.widest(str(out.dtype))):
            value = buffer[span(first + start, length)]
            T.buffer_store(out, value, [sample, span(place + p * loops.outputs + start, length)])
