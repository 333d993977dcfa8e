"""Elements at places that are computed: gathering, and the places of largest and smallest elements.

All values are row-major, with every axis that the operator looks at.
"""

from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, expressed
from ptqc.codegen.program.layout import Layout
from ptqc.runtime.lengths import Size, varies


def within(place: Any, size: Size) -> Any:
    """A place of an axis; one below 0 counts from the end, and what is beyond gives its ends."""
    wide = T.Cast("int64", place)
    if varies([size]):
        all_of = expressed(size)
        bound = T.Bind(T.min(T.max(wide, T.int64(0) - all_of), all_of - T.int64(1)))
        return T.Select(bound < T.int64(0), bound + all_of, bound)
    bound = T.min(T.max(wide, T.int64(-size)), T.int64(size - 1))
    return T.Cast("int32", T.Select(bound < T.int64(0), bound + T.int64(size), bound))


def gather_elements(x: Layout, places: Layout, y: Layout, axis: int) -> KernelSource:
    """Along an axis, each element of y from its own place in x."""

    def body(grid: KernelGrid, buffer: Any, index: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            source = list(place)
            source[axis] = T.Bind(within(index[sample, places.offset(place)], x.shape[axis]))
            T.buffer_store(out, buffer[sample, x.offset(source)], [sample, y.offset(place)])

    return build("gather_elements", [x, places], [], y, body)


def gather(x: Layout, places: Layout, y: Layout, axis: int) -> KernelSource:
    """Slices of x across an axis, at places of any shape, whose axes take that of the axis."""

    def body(grid: KernelGrid, buffer: Any, index: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            inner = place[axis : axis + len(places.shape)]
            value = T.Bind(within(index[sample, places.offset(inner)], x.shape[axis]))
            source = [*place[:axis], value, *place[axis + len(places.shape) :]]
            T.buffer_store(out, buffer[sample, x.offset(source)], [sample, y.offset(place)])

    return build("gather", [x, places], [], y, body)


def gather_nd(x: Layout, places: Layout, y: Layout, batch_axes: int) -> KernelSource:
    """Slices of x at places whose last axis lists the indices of axes; batch_axes in front are common to both."""
    depth, outer = places.shape[-1], len(places.shape) - 1

    def body(grid: KernelGrid, buffer: Any, index: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            values = [
                T.Bind(within(index[sample, places.offset([*place[:outer], i])], x.shape[batch_axes + i]))
                for i in range(depth)
            ]
            source = [*place[:batch_axes], *values, *place[outer:]]
            T.buffer_store(out, buffer[sample, x.offset(source)], [sample, y.offset(place)])

    return build("gather_nd", [x, places], [], y, body)


def place_of_best(x: Layout, y: Layout, axis: int, *, is_largest: bool, is_last: bool) -> KernelSource:
    """The place of the largest or smallest element along an axis, the first or the last one of equals."""
    stride, length = prod(x.shape[axis + 1 :]), x.shape[axis]

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.rows(x.elements // length, x.elements) as (sample, row):
            best, place = grid.registers(1, x.dtype), grid.registers(1, "int32")
            start = T.Bind(row // stride * (length * stride) + row % stride)
            T.buffer_store(best, source[sample, start], [0])
            T.buffer_store(place, T.int32(0), [0])
            with T.serial(expressed(length)) as index:
                value = T.Bind(source[sample, start + index * stride])
                with T.If(_is_better(value, best[0], is_largest=is_largest, is_last=is_last)), T.Then():
                    T.buffer_store(best, value, [0])
                    T.buffer_store(place, T.Cast("int32", index) if varies([length]) else index, [0])
            T.buffer_store(out, T.Cast(y.dtype, place[0]), [sample, row])

    return build("arg", [x], [], y, body)


def _is_better(value: Any, best: Any, *, is_largest: bool, is_last: bool) -> Any:
    if is_last:
        return value >= best if is_largest else value <= best
    return value > best if is_largest else value < best


def triangle(x: Layout, y: Layout, diagonal: int, *, is_upper: bool) -> KernelSource:
    """x above a diagonal of its matrices, or below; zero elsewhere."""

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            distance = place[-1] - place[-2]
            inside = distance >= diagonal if is_upper else distance <= diagonal
            value = source[sample, x.offset(place)]
            T.buffer_store(out, T.Select(inside, value, T.Cast(x.dtype, T.int32(0))), [sample, y.offset(place)])

    return build("triangle", [x], [], y, body)


def running(x: Layout, y: Layout, axis: int, *, is_product: bool, exclusive: bool, backwards: bool) -> KernelSource:
    """Sums or products of everything up to each element along an axis, itself included or not."""
    stride, length = prod(x.shape[axis + 1 :]), x.shape[axis]

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.rows(x.elements // length, x.elements) as (sample, row):
            total = grid.registers(1, x.dtype)
            start = T.Bind(row // stride * (length * stride) + row % stride)
            T.buffer_store(total, T.Cast(x.dtype, T.int32(int(is_product))), [0])
            with T.serial(expressed(length)) as step:
                at = T.Bind(start + (length - 1 - step if backwards else step) * stride)
                value = T.Bind(source[sample, at])
                after = T.Bind(total[0] * value if is_product else total[0] + value)
                T.buffer_store(out, total[0] if exclusive else after, [sample, at])
                T.buffer_store(total, after, [0])

    return build("running", [x], [], y, body)
