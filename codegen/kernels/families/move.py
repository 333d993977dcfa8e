"""Operators that only move elements: padding, slices, transposes, reshapes, concatenation, resizing to neighbours."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build, pointwise
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import ElementRun, KernelGrid, KernelSource
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import EXACT
from ptqc.runtime.lengths import Size, varies

Place = Sequence[Any]
CHANNELS_LAST = (1, 2, 0)


def pad(x: Layout, y: Layout, before: Sequence[int], value: float, isa: Isa) -> KernelSource:
    """x in the middle of y, `before` elements from each axis's start; the rest is `value`.

    Where x would begin before y or end behind it, that part of x is cut off.
    """
    constants = [x.encoded(np.array([value]))]
    is_inside = all(0 <= start <= all_ - size for start, size, all_ in zip(before, x.shape, y.shape, strict=True))
    if is_inside and not isa.by_element and x.order == y.order == CHANNELS_LAST and x.shape[0] == y.shape[0]:
        return build("pad", [x], constants, y, _pad_plane(x, y, before[1], before[2], isa))

    def source(place: Place) -> tuple[list[Any], Any]:
        inner, inside = [], None
        for index, start, size, padded in zip(place, before, x.shape, y.shape, strict=True):
            moved = index - start if start else index
            inner.append(moved)
            if start or size != padded:
                within = T.And(moved >= 0, moved < size)
                inside = within if inside is None else T.And(inside, within)
        return inner, inside

    return _moved("pad", x, y, constants, source)


def _pad_plane(x: Layout, y: Layout, top: int, left: int, isa: Isa) -> Any:
    channels = y.shape[0]

    def body(grid: KernelGrid, buffer: Any, filler: Any, out: Any) -> None:
        with grid.rows(y.shape[1], y.elements) as (sample, row):
            _row_with_border(
                x,
                y,
                (top, left),
                row,
                lambda start, length: ElementRun(out, sample, start, length).fill(filler[0], isa),
                lambda start: _copy_row(x, buffer, row - top, ElementRun(out, sample, start, channels), channels, isa),
            )

    return body


def _row_with_border(
    x: Layout,
    y: Layout,
    corner: tuple[int, int],
    row: Any,
    fill: Callable[[Any, int], None],
    inner: Callable[[Any], None] = lambda _start: None,
) -> None:
    """A row of y: all border, or border, what `inner` does, and border. corner: where x begins. fill: start, length."""
    (top, left), (channels, _, width) = corner, y.shape
    first, length = left * channels, x.shape[2] * channels
    start = row * (width * channels)
    with T.If(T.And(row >= top, row < top + x.shape[1])):
        with T.Then():
            fill(start, first)
            inner(start + first)
            fill(start + first + length, width * channels - length - first)
        with T.Else():
            fill(start, width * channels)


def _copy_row(x: Layout, inputs: Any, row: Any, pixel: ElementRun, pitch: int, isa: Isa) -> None:
    """Copy a row of a plane to where its first pixel goes; pitch: from there to the next one."""
    channels, columns = x.shape[0], x.shape[2]
    if channels == x.plane[0] == pitch:
        replace(pixel, length=columns * channels).copy_from(inputs, x.at(row, 0, 0), isa)
        return
    with T.serial(columns) as column:
        replace(pixel, start=pixel.start + column * pitch).copy_from(inputs, x.at(row, column, 0), isa)


def border(x: Layout, y: Layout, value: float, isa: Isa) -> KernelSource:
    """What lies around x in y; x itself is there already."""
    assert x.parent_buffer is not None
    _, top, left = x.parent_buffer.at
    channels, height, width = y.shape

    def by_element(grid: KernelGrid, filler: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            _, row, column = place
            inside = (row >= top, row < top + x.shape[1], column >= left, column < left + x.shape[2])
            with T.If(T.Not(reduce(lambda a, b: T.And(a, b), inside))), T.Then():
                T.buffer_store(out, filler[0], [sample, y.offset(place)])

    def body(grid: KernelGrid, filler: Any, out: Any) -> None:
        if isa.by_element:
            by_element(grid, filler, out)
            return
        with grid.rows(height, height * (width - x.shape[2]) * channels) as (sample, row):
            _row_with_border(
                x,
                y,
                (top, left),
                row,
                lambda start, length: ElementRun(out, sample, start, length).fill(filler[0], isa),
            )

    return build("border", [], [y.encoded(np.array([value]))], y, body)


def remap(family: str, x: Layout, y: Layout, source: Callable[[Place], Place]) -> KernelSource:
    """y at a place is x at source(place)."""
    return _moved(family, x, y, [], lambda place: (source(place), None))


def strided(x: Layout, y: Layout, starts: Sequence[Size], steps: Sequence[int], isa: Isa) -> KernelSource:
    """Every `steps`-th element from `starts` on, along each axis."""
    if not isa.by_element and x.order == y.order == CHANNELS_LAST and steps[0] == 1:

        def source(row: Any, column: Any, _tables: Sequence[Any]) -> Any:
            return x.at(row * steps[1] + starts[1], column * steps[2] + starts[2], starts[0])

        is_whole = steps[2] == 1 and x.plane[0] == y.plane[0] == y.shape[0]
        return build("slice", [x], [], y, _pixels(y, source, isa, y.shape[2] if is_whole else 1))
    return _moved(
        "slice",
        x,
        y,
        [],
        lambda place: ([b + i * s for i, b, s in zip(place, starts, steps, strict=True)], None),
        starts,
    )


def transpose(x: Layout, y: Layout, axes: Sequence[int]) -> KernelSource:
    """Axis i of y is axis axes[i] of x."""
    return remap("transpose", x, y, lambda place: [place[list(axes).index(axis)] for axis in range(len(axes))])


def reshape(x: Layout, y: Layout, isa: Isa) -> KernelSource:
    """The same elements, counted in the model's order, in another shape."""
    if varies((*x.shape, *y.shape)) and all(value.is_io or value.row_major for value in (x, y)):
        flat = Layout((x.elements,), x.dtype, row_major=True)
        return pointwise.copy(replace(x, shape=flat.shape), replace(y, shape=flat.shape), isa)
    from_offset, to_offset = Layout(x.shape, x.dtype, is_io=True), Layout(y.shape, y.dtype, is_io=True)
    return remap("reshape", x, y, lambda place: from_offset.place(to_offset.offset(place)))


def pick(x: Layout, y: Layout, axis: int, place: Size) -> KernelSource:
    """The elements at one place of an axis, which goes; its last one where it is shorter than that."""
    size = x.shape[axis]

    def source(other: Place) -> Place:
        taken = T.min(place, size - 1) if varies([size]) and place != 0 else place
        return [*other[:axis], taken, *other[axis:]]

    return remap("pick", x, y, source)


def repeat(x: Layout, y: Layout) -> KernelSource:
    """x over and over along each axis."""
    return remap(
        "repeat",
        x,
        y,
        lambda place: [_within(i, size, all_of) for i, size, all_of in zip(place, x.shape, y.shape, strict=True)],
    )


def _within(index: Any, size: Size, all_of: Size) -> Any:
    """An index of what is repeated along an axis."""
    if not varies((size, all_of)):
        return index % size
    return 0 if size == 1 else index if size == all_of else index % size


def depth_to_space(x: Layout, y: Layout, block: int, *, columns_first: bool) -> KernelSource:
    """Channels to neighbouring pixels. columns_first: ONNX's CRD order, else DCR."""
    channels = y.shape[0]

    def source(place: Place) -> Place:
        channel, row, column = place
        inner = row % block * block + column % block
        depth = channel * block * block + inner if columns_first else inner * channels + channel
        return [depth, row // block, column // block]

    return remap("depth_to_space", x, y, source)


def _pixels(y: Layout, source: Callable[[Any, Any, Sequence[Any]], Any], isa: Isa, together: int = 1) -> Any:
    """Pixel by pixel; source(row, column, tables): where the channels of a pixel of y begin in the input.

    together: neighbours of a row that are neighbours in the input too.
    """

    def body(grid: KernelGrid, buffer: Any, *buffers: Any) -> None:
        *tables, out = buffers
        with grid.nest((y.shape[1], y.shape[2] // together), y.elements) as (sample, (row, index)):
            column = index * together
            start = T.Bind(source(row, column, tables))
            ElementRun(out, sample, y.at(row, column, 0), y.shape[0] * together).copy_from(buffer, start, isa)

    return body


def nearest(x: Layout, y: Layout, maps: Sequence[np.ndarray], isa: Isa) -> KernelSource:
    """Along each axis, element maps[axis][i] of x for element i of y."""
    places = [value.astype(np.int32) for value in maps]
    is_by_pixel = not isa.by_element and np.array_equal(places[0], np.arange(x.shape[0]))
    if is_by_pixel and x.order == y.order == CHANNELS_LAST:
        moved = _pixels(y, lambda row, column, tables: x.at(tables[0][row], tables[1][column], 0), isa)
        return build("nearest", [x], places[1:], y, moved)

    def body(grid: KernelGrid, source: Any, *buffers: Any) -> None:
        *tables, out = buffers
        with grid.elements(y) as (sample, place):
            taken = [table[i] for table, i in zip(tables, place, strict=True)]
            T.buffer_store(out, source[sample, x.offset(taken)], [sample, y.offset(place)])

    return build("nearest", [x], places, y, body)


def constant(y: Layout, values: np.ndarray, isa: Isa) -> KernelSource:
    """The same row-major values for every sample."""

    def body(grid: KernelGrid, buffer: Any, out: Any) -> None:
        with grid.rows(1, y.elements) as (sample, _):
            ElementRun(out, sample, 0, y.elements).copy_from_constant(buffer, isa)

    return build("constant", [], [values], y, body, accuracy=EXACT)


def look_up(places: Layout, y: Layout, table: Sequence[Stored], count: int) -> KernelSource:
    """Rows of a table (count, …) at the places; those below 0 count from the end, those beyond it give its ends.

    table: its values, or int8 codes and a scale for each row, which stay codes in memory.
    """
    width = y.elements // places.elements

    def body(grid: KernelGrid, buffer: Any, values: Any, *operands: Any) -> None:
        *scales, out = operands
        with grid.rows(places.elements, y.elements) as (sample, place):
            result = T.min(T.max(buffer[sample, place], T.int64(-count)), T.int64(count - 1))
            row = T.Bind(T.Cast("int32", T.Select(result < T.int64(0), result + T.int64(count), result)))
            with T.serial(width) as column:
                value = values[row * width + column]
                for scale in scales:
                    value = T.Cast("float32", value) * scale[row]
                T.buffer_store(out, value, [sample, place * width + column])

    return build("look_up", [places], table, y, body)


def concat(
    inputs: Sequence[Layout], y: Layout, axis: int, isa: Isa, placed: Collection[int] = frozenset()
) -> KernelSource:
    """One after the other along an axis. Whatever is faster in memory moves with it as one run.

    placed: inputs that lie in y already.
    """
    if any(value.parent_buffer is not None for value in (*inputs, y)):
        return _concat_pixels(inputs, y, isa, placed)
    slower = y.order[: y.order.index(axis)]
    count = prod(y.shape[other] for other in slower)

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *sources, out = buffers
        with grid.rows(count, y.elements) as (sample, row):
            start: Any = row * (y.elements // count)
            for x, buffer in zip(inputs, sources, strict=True):
                length = x.elements // count
                ElementRun(out, sample, start, length).copy_from(buffer, row * length, isa)
                start = start + length

    return build("concat", inputs, [], y, body)


def _concat_pixels(inputs: Sequence[Layout], y: Layout, isa: Isa, placed: Collection[int]) -> KernelSource:
    """Channels one after the other, pixel by pixel, where values lie in larger planes."""
    starts = [sum(x.shape[0] for x in inputs[:index]) for index in range(len(inputs))]
    moved = [(x, start) for index, (x, start) in enumerate(zip(inputs, starts, strict=True)) if index not in placed]

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *sources, out = buffers
        work = y.elements if moved else 0
        with grid.rows(y.shape[1], work) as (sample, row):
            for (x, start), buffer in zip(moved, sources, strict=True):
                pixel = ElementRun(out, sample, y.at(row, 0, start), x.shape[0])
                _copy_row(x, buffer, row, pixel, y.plane[0], isa)

    return build("concat", [x for x, _ in moved], [], y, body)


def _moved(
    family: str,
    x: Layout,
    y: Layout,
    constants: Sequence[np.ndarray],
    source: Callable[[Place], tuple[Place, Any]],
    numbers: Sequence[Size] = (),
) -> KernelSource:
    """source(place): where y's element lies in x, and whether it lies there (None: always) or is the constant."""

    def body(grid: KernelGrid, buffer: Any, *buffers: Any) -> None:
        *filler, out = buffers
        with grid.elements(y) as (sample, target):
            place, inside = source(target)
            value = buffer[sample, x.offset(place)]
            if inside is not None:
                value = T.if_then_else(inside, value, filler[0][0])
            T.buffer_store(out, value, [sample, y.offset(target)])

    return build(family, [x], constants, y, body, numbers=numbers)
