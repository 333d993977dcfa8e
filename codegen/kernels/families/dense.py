"""Convolutions with any window, stride, dilation and groups, and products with a matrix: one register-blocked kernel.

A tile of neighbouring output pixels times a panel of output channels stays in registers while the kernel runs over the
window. The input is padded already and has its channels last, so that a row of the window is one run of bytes as long
as nothing lies between its taps; no window is ever copied. Weights lie in the order in which the loops read them.

Where every weight is used but once, reading them is what takes time: those of at most 16 values stay two to a byte, and
become codes by picking bytes in registers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import gcd
from operator import add
from typing import Any, NamedTuple, Self

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import writing
from ptqc.codegen.kernels.backend import LayerSpec
from ptqc.codegen.kernels.epilogue import PACKED, Place, fits
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.families.functions import accuracy_with, family_with
from ptqc.codegen.kernels.families.real_stages import (
    RealStage,
    composed,
    constants_of,
    functions_of,
    others_of,
    unrounded,
)
from ptqc.codegen.kernels.isa import Isa, TileShape
from ptqc.codegen.kernels.tile_registers import TileRegisters
from ptqc.codegen.kernels.tiling import Cut, Dense
from ptqc.codegen.kernels.writing import (
    PRODUCTS,
    Around,
    KernelGrid,
    KernelSource,
    expressed,
    fill,
    pieces,
    rounded_up,
    span,
    vector,
)
from ptqc.codegen.program.constants import VALUES, Arranged, BfloatCodes, Nibbles, ScaledPanels, Stored, values_of
from ptqc.codegen.program.layout import BFLOAT16, Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS, Alternatives
from ptqc.runtime.lengths import hint, varies

# Vectors of products that stay in registers one chain after the other; sums of longer chains are all open at once.
SHORT_CHAIN = 4
# How many times as many products as vectors do tiles do at least.
TILE_GAIN = 4

# Of a tile's first pixel: sample, row and column.
Pixel = tuple[Any, Any, Any]
# Computes the tile of a pixel and a panel.
ComputeTile = Callable[[Pixel, Any], None]
# By pixel, by vector of the panel.
Totals = Sequence[Sequence[Any]]
# Of unit, part of the weight, pixel and vector: input, place in it, weights, place in them.
Operands = Callable[[Any, int, int, int], tuple[Any, Any, Any, Any]]


class Accumulated(NamedTuple):
    """A vector of accumulators. packed: where its channels are among the packed ones; place: in the output."""

    total: Any
    packed: Any
    place: Place


# Fills a local buffer with what is to be stored of up to PACKED vectors; then numbers, and values that are read.
Settle = Callable[[Sequence[Accumulated], Any, Sequence[Any], Sequence[Any]], None]


class CodedWeights(NamedTuple):
    """float32 weights as the file has them: codes (outputs, inputs of a group, *kernel) and a scale per output."""

    codes: np.ndarray
    scale: np.ndarray


class Arguments(NamedTuple):
    """The buffers of a kernel. beside, numbers: values and numbers that `settle` takes. special: which chains may
    overflow, or how tile registers are configured.
    """

    x: Any
    beside: Sequence[Any]
    w: Any
    bias: Any
    special: Any
    numbers: Sequence[Any]
    out: Any

    @classmethod
    def of(cls, kernel: "DenseLoops", buffers: Sequence[Any]) -> Self:
        """The buffers in their order."""
        x, *tail = buffers
        beside, (w, bias, *numbers, out) = tail[: kernel.others], tail[kernel.others :]
        is_special = kernel.loops.has_unsafe_chains or kernel.loops.has_tile_registers
        return cls(x, beside, w, bias, numbers.pop(0) if is_special else None, numbers, out)


@dataclass(frozen=True)
class DenseLoops:
    """Loops over two layouts, and how sums become elements. others: how many values `settle` reads."""

    loops: Dense
    x: Layout
    y: Layout
    settle: Settle
    others: int = 0


def integer(layer: LayerSpec, loops: Dense, stages: Sequence[RealStage] = ()) -> KernelSource:
    """A layer of codes. stages: of real values, where these are what it gives."""
    x, y, weights, requantization, epilogue = (
        layer.x,
        layer.y,
        layer.weights,
        layer.requantization,
        layer.epilogue,
    )
    beside = [*epilogue.others, *others_of(stages)]
    loops = replace(loops, is_framed=any(value.parent_buffer is not None for value in (x, y, *beside)))
    codes = weights.astype(np.int8)
    loops, unsafe = _chained(loops, codes)
    loops = replace(loops, in_nibbles=_stay_packed(loops, codes))
    assert not loops.in_nibbles or loops.cut.vectors % 2 == 0, "two vectors of weights share their bytes"
    isa, fitting = loops.isa, fits(weights, requantization.bias, requantization.factor)
    arranged = Arranged(codes, loops.order)
    bias = requantization.bias.astype(np.int32)
    bias = isa.signed_bias(bias, codes) if loops.rows == 1 else bias
    constants: list[Stored] = [
        Nibbles(arranged, loops.unit * isa.lanes) if loops.in_nibbles else arranged,
        loops.pack_channels(bias),
        *unsafe,
        *_configuration(loops),
        loops.pack_channels(requantization.factor.astype(np.float32)),
        np.array([requantization.zero_point], np.float32),
        *epilogue.constants(isa),
        *constants_of(stages, loops.pack_channels),
    ]

    def settle(sums: Sequence[Accumulated], target: Any, numbers: Sequence[Any], extra: Sequence[Any]) -> None:
        factors, zero, *tail = numbers
        kind = vector("float32", isa.lanes)
        values = [T.Cast(kind, lane_sum.total) * factors[span(lane_sum.packed, isa.lanes)] for lane_sum in sums]
        if y.dtype != "uint8":
            _keep(isa, y, _staged(stages, y, isa, zip(sums, values, strict=True), tail, extra), target)
            return
        places = [lane_sum.place for lane_sum in sums]
        epilogue.settle(isa, values, zero[0], target, places, tail, extra, fitting=fitting)

    def cut(chosen: Cut) -> KernelSource:
        return integer(layer, replace(loops, chosen=chosen), stages)

    family, accuracy = family_with("dense", stages), accuracy_with(SUM_OF_PRODUCTS, functions_of(stages))
    body = _body(DenseLoops(loops, x, y, settle, len(beside)))
    built = build(family, [x, *beside], constants, y, body, 2 * loops.products, accuracy)
    return replace(built, alternatives=Alternatives(loops.cuts, cut))


def _configuration(loops: Dense) -> list[Stored]:
    """Of tile registers, where the loops have them."""
    return [TileRegisters(loops).configuration] if loops.has_tile_registers else []


def _chained(loops: Dense, codes: np.ndarray) -> tuple[Dense, list[Stored]]:
    """The loops, and which chains may overflow; where none does with these weights, the loops know all to be sure."""
    if not loops.has_unsafe_chains:
        return loops, []
    unsafe = loops.unsafe_chains(codes)
    return (loops, [unsafe]) if unsafe.any() else (replace(loops, accumulation=loops.accumulation.all_safe), [])


def _stay_packed(loops: Dense, codes: np.ndarray) -> bool:
    """Whether reading the weights takes most of the time, and they can be read two to a byte."""
    if (
        not loops.isa.pick
        or loops.rows > 1
        or not loops.is_weight_bound
        or loops.groups > 1
        or loops.accumulation.parts > 1
    ):
        return False
    values = values_of(codes)
    is_padded = loops.depth * loops.unit > loops.runs[2]  # with weights of 0
    return len(np.union1d(values, 0) if is_padded else values) <= VALUES


def real(
    x: Layout,
    y: Layout,
    loops: Dense,
    weights: np.ndarray | CodedWeights,
    bias: np.ndarray,
    stages: Sequence[RealStage] = (),
) -> KernelSource:
    """The same in float32. stages: of the sums, one of the other's result."""
    beside = others_of(stages)
    loops = replace(loops, is_framed=any(value.parent_buffer is not None for value in (x, y, *beside)))
    constants = [_real_weights(loops, weights), loops.pack_channels(bias.astype(np.float32))]
    constants += constants_of(stages, loops.pack_channels)

    def settle(sums: Sequence[Accumulated], target: Any, numbers: Sequence[Any], extra: Sequence[Any]) -> None:
        totals = ((lane_sum, lane_sum.total) for lane_sum in sums)
        _keep(loops.isa, y, _staged(stages, y, loops.isa, totals, numbers, extra), target)

    def cut(chosen: Cut) -> KernelSource:
        return real(x, y, replace(loops, chosen=chosen), weights, bias, stages)

    family, accuracy = family_with("dense_float", stages), accuracy_with(SUM_OF_PRODUCTS, functions_of(stages))
    body = _body(DenseLoops(loops, x, y, settle, len(beside)))
    built = build(family, [x, *beside], constants, y, body, 2 * loops.products, accuracy)
    return replace(built, alternatives=Alternatives(loops.cuts, cut))


def bfloat(
    x: Layout, y: Layout, loops: Dense, weights: CodedWeights, bias: np.ndarray, stages: Sequence[RealStage] = ()
) -> KernelSource:
    """The same of inputs and codes in bfloat16, which have no more digits; a run has an even number of inputs.

    Sums are in units of the weights' scales.
    """
    assert loops.runs[2] % loops.unit == 0, "what lies after a run may be NaN"
    beside = others_of(stages)
    loops = replace(loops, is_framed=any(value.parent_buffer is not None for value in (x, y, *beside)))
    scale = weights.scale.astype(np.float32)
    constants: list[Stored] = [
        BfloatCodes(Arranged(weights.codes.astype(np.int8), loops.order)),
        loops.pack_channels((bias / scale).astype(np.float32)),
        *_configuration(loops),
        loops.pack_channels(scale),
        *constants_of(stages, loops.pack_channels),
    ]

    def settle(sums: Sequence[Accumulated], target: Any, numbers: Sequence[Any], extra: Sequence[Any]) -> None:
        (scales, *tail), lanes = numbers, loops.isa.lanes
        values = ((lane_sum, lane_sum.total * scales[span(lane_sum.packed, lanes)]) for lane_sum in sums)
        _keep(loops.isa, y, _staged(stages, y, loops.isa, values, tail, extra), target)

    def cut(chosen: Cut) -> KernelSource:
        return bfloat(x, y, replace(loops, chosen=chosen), weights, bias, stages)

    family, accuracy = family_with("dense_bfloat", stages), accuracy_with(SUM_OF_PRODUCTS, functions_of(stages))
    body = _body(DenseLoops(loops, x, y, settle, len(beside)))
    built = build(family, [x, *beside], constants, y, body, 2 * loops.products, accuracy)
    return replace(built, alternatives=Alternatives(loops.cuts, cut))


def _real_weights(loops: Dense, weights: np.ndarray | CodedWeights) -> Stored:
    if isinstance(weights, np.ndarray):
        return loops.order(weights.astype(np.float32))
    scale = loops.pack_channels(weights.scale.astype(np.float32))
    return ScaledPanels(Arranged(weights.codes.astype(np.int8), loops.order), scale, loops.groups * loops.panels)


def _staged(
    stages: Sequence[RealStage],
    y: Layout,
    isa: Isa,
    values: Iterable[tuple[Accumulated, Any]],
    numbers: Sequence[Any],
    extra: Sequence[Any],
) -> list[Any]:
    """What becomes of real values, each given with where it belongs."""
    left = unrounded(stages, y)
    return [composed(left, value, isa.lanes, lane_sum[1:], numbers, extra) for lane_sum, value in values]


def _keep(isa: Isa, y: Layout, values: Sequence[Any], target: Any) -> None:
    for place, value in enumerate(values):
        T.buffer_store(target, writing.as_stored(isa, y, value, isa.lanes), [span(place * isa.lanes, isa.lanes)])


def _body(kernel: DenseLoops) -> Any:
    if varies(kernel.loops.area):
        return _body_of_any_size(kernel)
    loops = kernel.loops
    width, pixels = loops.area[1], loops.cut.pixels
    across = loops.tiles // loops.area[0]

    def body(grid: KernelGrid, *buffers: Any) -> None:
        arguments = Arguments.of(kernel, buffers)
        compute, around = _computation(kernel, grid, arguments)
        needed = loops.width == 2 or kernel.y.dtype == BFLOAT16
        with (
            writing.bfloat16_instructions(loops.isa, needed=needed),
            _nest(grid, loops, around) as (sample, tile, group_panel),
        ):
            pixel = tile // across, T.Bind(T.min(tile % across * pixels, width - pixels))
            compute((sample, *pixel), group_panel)

    return body


def _body_of_any_size(kernel: DenseLoops) -> Any:
    """The same of as many pixels as a call has: in tiles, the last of which begins early enough to be whole, or one by
    one where they do not fill a tile.
    """
    loops = kernel.loops
    single = replace(kernel, loops=replace(loops, chosen=loops.cut._replace(pixels=1, stay=loops.tiles)))

    def body(grid: KernelGrid, *buffers: Any) -> None:
        needed = loops.width == 2 or kernel.y.dtype == BFLOAT16
        with (
            writing.bfloat16_instructions(loops.isa, needed=needed),
            T.If(expressed(loops.area[1]) >= loops.cut.pixels),
        ):
            with T.Then():
                _tiles_of_any_size(kernel, grid, buffers)
            with T.Else():
                _tiles_of_any_size(single, grid, buffers)

    return body


def _tiles_of_any_size(kernel: DenseLoops, grid: KernelGrid, buffers: Sequence[Any]) -> None:
    loops = kernel.loops
    compute_tile, around = _computation(kernel, grid, Arguments.of(kernel, buffers))
    pixels, width, panels = loops.cut.pixels, expressed(loops.area[1]), loops.groups * loops.panels
    tiles, stay, work = rounded_up(width, pixels), loops.cut.stay, _work(loops)

    def compute(sample: Any, tile: Any, panel: Any) -> None:
        compute_tile((sample, 0, T.Bind(T.min(T.Cast("int64", tile) * pixels, width - pixels))), panel)

    if stay >= loops.tiles:
        with grid.nest((panels, tiles), work, around) as (sample, (panel, tile)):
            compute(sample, tile, panel)
        return
    with grid.nest((rounded_up(tiles, stay), panels), work, around) as (sample, (block, panel)):
        count = T.min(T.int64(stay), tiles - block * stay)
        with T.serial(count) as step:
            compute(sample, block * stay + step, panel)


def _work(loops: Dense) -> int:
    """Operations of one sample, in the unit of `KernelGrid.nest`."""
    return hint(loops.products) // (PRODUCTS * (TILE_GAIN if loops.in_tile_registers else 1))


def _computation(kernel: DenseLoops, grid: KernelGrid, arguments: Arguments) -> tuple[ComputeTile, Around | None]:
    """What computes a tile and a panel, and what a thread does around all of them."""
    if kernel.loops.in_tile_registers:
        registers = TileRegisters(kernel.loops)
        compute = partial(_compute_in_tile_registers, kernel, grid, arguments, registers)
        return compute, partial(registers.configured, arguments.special)
    return partial(_compute_in_vectors, kernel, grid, arguments), None


def _compute_in_vectors(
    kernel: DenseLoops, grid: KernelGrid, arguments: Arguments, pixel: Pixel, group_panel: Any
) -> None:
    totals = _accumulate(kernel, grid, arguments, pixel, group_panel)
    _store(kernel, grid, _placed(kernel.loops, enumerate(totals), pixel, group_panel), arguments, group_panel)


def _compute_in_tile_registers(
    kernel: DenseLoops, grid: KernelGrid, arguments: Arguments, registers: TileRegisters, pixel: Pixel, group_panel: Any
) -> None:
    loops, panel = kernel.loops, kernel.loops.cut.vectors
    registers.start(arguments.bias, group_panel * panel * loops.isa.lanes)
    with _chains(kernel, pixel, group_panel) as (start, run, link):
        first = link * loops.links[1]
        inputs, weights = (pixel[0], start + first * loops.unit), _weights_at(loops, group_panel, run, first)
        registers.add(arguments.x, inputs, _pitch(kernel), arguments.w, weights)
    registers.store_sums()
    together = min(PACKED // gcd(PACKED, panel), registers.rows)
    with T.serial(registers.count) as index, T.serial(-(-registers.rows // together)) as group:
        row = T.Bind(T.min(group * together, registers.rows - together))
        first_row = registers.start_of(index, T.min) + row
        totals = ((first_row + i, registers.stored_sums(index, row + i)) for i in range(together))
        _store(kernel, grid, _placed(loops, totals, pixel, group_panel), arguments, group_panel)


@contextmanager
def _nest(grid: KernelGrid, loops: Dense, around: Around | None) -> Iterator[tuple[Any, Any, Any]]:
    """Loops over samples, tiles, and panels of all groups; the outer one in parallel."""
    tiles, panels, stay, work = loops.tiles, loops.groups * loops.panels, loops.cut.stay, _work(loops)
    if stay >= tiles:
        with grid.nest((panels, tiles), work, around) as (sample, (panel, tile)):
            yield sample, tile, panel
        return
    with grid.nest((-(-tiles // stay), panels), work, around) as (sample, (block, panel)):
        count = T.min(stay, tiles - block * stay) if tiles % stay else stay
        with T.serial(count) as step:
            yield sample, block * stay + step, panel


def _step(loops: Dense) -> int:
    """Pixels of the input from one of the output to the next."""
    return 1 if loops.is_flat else loops.window.strides[1]


def _pitch(kernel: DenseLoops) -> int:
    """Inputs from one pixel of the output to the next."""
    return _step(kernel.loops) * int(kernel.x.plane[0])


@contextmanager
def _chains(kernel: DenseLoops, pixel: Pixel, group_panel: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Loops over the chains of a window: where the first pixel's run begins, and the numbers of run and chain."""
    loops, window = kernel.loops, kernel.loops.window
    (run_rows, run_columns, _), group = loops.runs, group_panel // loops.panels
    with T.serial(run_rows) as ky, T.serial(run_columns) as kx, T.serial(loops.links[0]) as link:
        above = pixel[1] * window.strides[0] + ky * window.dilations[0]
        left = pixel[2] * _step(loops) + kx * window.dilations[1]
        yield kernel.x.at(above, left, group * loops.group_inputs), ky * run_columns + kx, link


def _weights_at(loops: Dense, group_panel: Any, run: Any, k: Any, part: int = 0, vector: int = 0) -> Any:
    """Where the weights of a unit of a run lie."""
    taps = (run * loops.depth + k) * loops.accumulation.parts + part
    return group_panel * loops.panel_size + (taps * loops.cut.vectors + vector) * loops.isa.lanes * loops.unit


def _accumulate(kernel: DenseLoops, grid: KernelGrid, arguments: Arguments, pixel: Pixel, group_panel: Any) -> Totals:
    """Sums of a tile and a panel."""
    loops, bias, sample = kernel.loops, arguments.bias, pixel[0]
    lanes, (pixels, panel, _) = loops.isa.lanes, loops.cut
    dtype, at = "int32" if loops.width == 1 else "float32", span(0, lanes)
    totals = [[grid.registers(lanes, dtype) for _ in range(panel)] for _ in range(pixels)]
    rows = loops.rows
    for p, row in enumerate(totals):
        for j, total in enumerate(row):
            start = bias[span((group_panel * panel + j) * lanes, lanes)]
            T.buffer_store(total, start if rows == 1 else _part_of_each_row(start, loops.tile, p % rows), [at])
    run_rows, run_columns, _ = loops.runs
    with _chains(kernel, pixel, group_panel) as (start, run, link):

        def operands(k: Any, part: int, p: int, j: int) -> tuple[Any, Any, Any, Any]:
            place = sample, start + k * loops.unit + p * _pitch(kernel)
            return arguments.x, place, arguments.w, _weights_at(loops, group_panel, run, k, part, j)

        chain = (group_panel * run_rows * run_columns + run) * loops.links[0] + link
        unsafe = arguments.special[chain] if loops.has_unsafe_chains else None
        _add(loops, grid, totals, link * loops.links[1], operands, unsafe)
    if rows > 1:
        return [row for p in range(0, pixels, rows) for row in _by_pixel(totals[p : p + rows], loops.tile)]
    return [[total[at] for total in row] for row in totals]


# A tile of m > 1 rows has n sums of each of m pixels, and there are m of these tiles in place of m vectors of lanes.


def _part_of_each_row(vector: Any, tile: TileShape, index: int) -> Any:
    """The n lanes that tile `index` has of a vector, once for each row."""
    return T.Shuffle([vector], [T.int32(index * tile.n + i) for _ in range(tile.m) for i in range(tile.n)])


def _by_pixel(tiles: Totals, shape: TileShape) -> list[list[Any]]:
    """Sums of m pixels, of the tiles that have them."""
    lanes = shape.m * shape.n
    places = [
        [T.int32(tile * lanes + row * shape.n + i) for tile in range(shape.m) for i in range(shape.n)]
        for row in range(shape.m)
    ]
    vectors = [[T.Bind(tile[span(0, lanes)]) for tile in column] for column in zip(*tiles, strict=True)]
    return [[T.Shuffle(column, order) for column in vectors] for order in places]


def _add(loops: Dense, grid: KernelGrid, totals: Totals, first: Any, operands: Operands, unsafe: Any) -> None:
    """Add the products of a chain, in two halves where it may overflow."""
    length, half = loops.links[1], -(-loops.links[1] // 2)
    way = _chain if loops.accumulation.chain > 1 else _vector_of_units if loops.by_lane else _units
    sum_up = partial(way, loops, grid, totals, operands)
    if unsafe is None:
        sum_up(first, length)
        return
    with T.If(unsafe != T.uint8(0)):
        with T.Then():
            sum_up(first, half)
            sum_up(first + half, length - half)
        with T.Else():
            sum_up(first, length)


def _vector_of_units(
    loops: Dense, _grid: KernelGrid, totals: Totals, operands: Operands, first: Any, count: int
) -> None:
    """Add the products of as many units as a vector of inputs has."""
    at, isa = span(0, loops.isa.lanes), loops.isa
    assert count == isa.lanes
    inputs = [T.Bind(isa.vector_of_taps(*operands(first, 0, p, 0)[:2])) for p in range(len(totals))]
    for unit in range(count):
        for j in range(len(totals[0])):
            weights = T.Bind(_weights(loops, *operands(first + unit, 0, 0, j)[2:], j))
            for row, fours in zip(totals, inputs, strict=True):
                T.buffer_store(row[j], isa.add_products(row[j][at], isa.taps_in(fours, unit), weights), [at])


def _units(loops: Dense, _grid: KernelGrid, totals: Totals, operands: Operands, first: Any, count: int) -> None:
    """Add products unit by unit."""
    at, rows = span(0, loops.isa.lanes), loops.rows
    with T.serial(count) as k:
        for part in range(loops.accumulation.parts):
            for p, row in enumerate(totals):
                for j, total in enumerate(row):
                    pixels = range(p // rows * rows, p // rows * rows + rows)
                    taken = [operands(first + k, part, pixel, j) for pixel in pixels]
                    T.buffer_store(total, _product(loops, total[at], taken, j, p % rows), [at])


def _chain(loops: Dense, grid: KernelGrid, totals: Totals, operands: Operands, first: Any, count: int) -> None:
    """Add products of a chain in 16 bits, then their sums."""
    at, words_at = span(0, loops.isa.lanes), span(0, 2 * loops.isa.lanes)

    def words(k: Any, p: int, j: int) -> Any:
        inputs, place, weights, offset = operands(k, 0, p, j)
        return loops.isa.words(loops.isa.taps(inputs, place), _weights(loops, weights, offset, j))

    if count <= SHORT_CHAIN:
        for p, row in enumerate(totals):
            for j, total in enumerate(row):
                word = reduce(add, (words(first + k, p, j) for k in range(count)))
                T.buffer_store(total, total[at] + loops.isa.widen(word), [at])
        return
    sums = [[grid.registers(2 * loops.isa.lanes, "int16") for _ in row] for row in totals]
    for row in sums:
        for word in row:
            T.buffer_store(word, fill(T.int16(0), 2 * loops.isa.lanes), [words_at])
    with T.serial(count) as k:
        for p, row in enumerate(sums):
            for j, word in enumerate(row):
                T.buffer_store(word, word[words_at] + words(first + k, p, j), [words_at])
    for row, into in zip(sums, totals, strict=True):
        for word, total in zip(row, into, strict=True):
            T.buffer_store(total, total[at] + loops.isa.widen(word[words_at]), [at])


def _product(loops: Dense, total: Any, operands: Sequence[tuple[Any, Any, Any, Any]], j: int, tile: int) -> Any:
    """Add the products of a unit. operands: of each row of the instruction. tile: which of its rows this one is."""
    x, place, w, weight = operands[0]
    if loops.width == 2:
        return writing.add_products(loops.isa, total, x, place, w, weight)
    if loops.width == 4:
        return total + fill(x[place[0], place[1]], loops.isa.lanes) * w[span(weight, loops.isa.lanes)]
    if loops.in_nibbles:
        return loops.isa.add_products(total, loops.isa.taps(x, place), _weights(loops, w, weight, j))
    if len(operands) > 1:
        shape, places = loops.tile, [each[1] for each in operands]
        return loops.isa.multiply(shape, total, x, places, w, weight + tile * shape.n * shape.k)
    return loops.isa.dot(total, x, place, w, weight)


def _weights(loops: Dense, w: Any, offset: Any, j: int) -> Any:
    """Vector j of a panel's weights; its offset is in codes. Two to a byte, it shares bytes with a neighbour."""
    if not loops.in_nibbles:
        return loops.isa.weights(w, offset)
    size = loops.unit * loops.isa.lanes
    both = w[span(size + (offset - j % 2 * size) // 2, size)]
    places = T.shift_right(both, fill(T.uint8(4), size)) if j % 2 else both
    value = loops.isa.pick_bytes(w[span(0, size)], T.bitwise_and(places, fill(T.uint8(15), size)))
    return T.reinterpret(vector("int8", size), value)


def _placed(
    loops: Dense, totals: Iterable[tuple[Any, Sequence[Any]]], pixel: Pixel, group_panel: Any
) -> list[Accumulated]:
    """Vectors of a tile with where they belong. totals: by pixel, counted from the tile's first one."""
    lanes, panel = loops.isa.lanes, loops.cut.vectors
    group, inside = group_panel // loops.panels, group_panel % loops.panels * panel * lanes
    return [
        Accumulated(
            total,
            (group_panel * panel + j) * lanes,
            (pixel[0], pixel[1], pixel[2] + p, group * loops.group_outputs + inside + j * lanes),
        )
        for p, row in totals
        for j, total in enumerate(row)
    ]


def _store(
    kernel: DenseLoops,
    grid: KernelGrid,
    sums: Sequence[Accumulated],
    arguments: Arguments,
    group_panel: Any,
) -> None:
    """Settle and store a tile; of the last panel only the channels that exist."""
    loops = kernel.loops
    lanes, whole = loops.isa.lanes, loops.cut.vectors * loops.isa.lanes
    buffers = []
    for start in range(0, len(sums), PACKED):
        target = grid.registers(PACKED * lanes, kernel.y.stored)
        kernel.settle(sums[start : start + PACKED], target, arguments.numbers, arguments.beside)
        buffers.append(target)
    remainder = loops.group_outputs - (loops.panels - 1) * whole
    if loops.panels == 1 or remainder == whole:
        _store_channels(kernel, sums, buffers, arguments.out, remainder)
        return
    with T.If(group_panel % loops.panels == loops.panels - 1):
        with T.Then():
            _store_channels(kernel, sums, buffers, arguments.out, remainder)
        with T.Else():
            _store_channels(kernel, sums, buffers, arguments.out, whole)


def _store_channels(
    kernel: DenseLoops, sums: Sequence[Accumulated], buffers: Sequence[Any], out: Any, count: int
) -> None:
    """Store the first channels of every pixel of a tile, which may begin in one buffer and end in the next."""
    lanes, panel = kernel.loops.isa.lanes, kernel.loops.cut.vectors
    size, widest = PACKED * lanes, kernel.loops.isa.widest(kernel.y.stored)
    for first in range(0, len(sums), panel):
        sample, *place = sums[first].place
        target, done = kernel.y.at(*place), 0
        while done < count:
            buffer, start = divmod(first * lanes + done, size)
            run = min(count - done, size - start)
            for offset, length in pieces(run, widest):
                value = buffers[buffer][span(start + offset, length)]
                T.buffer_store(out, value, [sample, span(target + done + offset, length)])
            done += run
