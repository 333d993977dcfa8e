"""Constants from their packed form, when the library is loaded: bit planes to indices to codes to real weights."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.writing import Constant, KernelGrid, KernelSource, Loops, bfloat16_bits
from ptqc.codegen.program.constants import Order, half
from ptqc.codegen.program.indexed import SPAN, Indexed
from ptqc.codegen.program.program import CompiledKernel
from ptqc.formats.planes import planes_of


def part(dtype: str, loops: Loops) -> CompiledKernel:
    """Kernel from the file of weights to some of its numbers; after the output it takes the place of the first one."""
    with IRBuilder() as builder, T.prim_func():
        name = f"part_{dtype}"
        T.func_name(name)
        T.func_attr({"global_symbol": name, "tirx.noalias": True})
        handles, first = [T.arg(f"a{i}", T.handle()) for i in range(2)], T.arg("first", T.int64())
        size, count = T.int64(), T.int64()
        file, out = T.match_buffer(handles[0], (size,), "uint8"), T.match_buffer(handles[1], (count,), dtype)
        operand = T.decl_buffer((size // np.dtype(dtype).itemsize,), dtype, data=file.data)
        with loops.each([count]) as (index,):
            T.buffer_store(out, operand[first + index], [index])
    return CompiledKernel("part", name, builder.get(), ())


def indices(bits: int, size: int) -> KernelSource:
    """Kernel from the planes of `size` indices (a multiple of 8) to the indices."""
    widths = planes_of(bits)
    planes = [Constant("uint8", size * width // 8) for width in widths]

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *inputs, out = buffers
        shift = bits
        for plane, width in zip(inputs, widths, strict=True):
            shift -= width
            for part in range(8 // width):
                length = size * width // 8
                with grid.each([length]) as (index,):
                    piece = T.shift_right(T.Cast("int32", plane[index]), T.int32(part * width))
                    piece = T.shift_left(T.bitwise_and(piece, T.int32(2**width - 1)), T.int32(shift))
                    place = part * length + index
                    start = T.int32(0) if shift + width == bits else T.Cast("int32", out[place])
                    T.buffer_store(out, T.Cast("uint8", start + piece), [place])

    return KernelSource(f"unpack{bits}", (*planes, Constant("uint8", size)), body)


def places(size: int, count: int) -> KernelSource:
    """Kernel from `size` bits, how many are set before each SPAN, and `count` indices to an index for each bit.

    Those of bits that are not set are 0, and the others one more than they were.
    """
    spans = -(-size // SPAN)

    def body(grid: KernelGrid, bits: Any, starts: Any, source: Any, out: Any) -> None:
        with grid.each([spans]) as (span,):
            before = grid.registers(1, "int32")
            T.buffer_store(before, starts[span], [0])
            with T.serial(T.min(SPAN, size - span * SPAN)) as step:
                place = span * SPAN + step
                is_kept = T.Cast("int32", bits[place]) > 0
                # Padding bits are not set, and no place behind the last index is read.
                index = T.Cast("int32", source[T.min(before[0], count - 1)]) + 1
                T.buffer_store(out, T.Cast("uint8", T.if_then_else(is_kept, index, T.int32(0))), [place])
                T.buffer_store(before, before[0] + T.if_then_else(is_kept, T.int32(1), T.int32(0)), [0])

    shapes = [Constant("uint8", size), Constant("int32", spans), Constant("uint8", count), Constant("uint8", size)]
    return KernelSource("places", tuple(shapes), body)


def codes(indexed: Indexed, count: int, order: Order) -> KernelSource:
    """Kernel from `count` indices, and the levels if there are any, to int8 codes in an order."""

    def body(grid: KernelGrid, index: Any, *buffers: Any) -> None:
        *levels, out = buffers
        with grid.each(order.sizes) as place:
            value = order.source(place)
            code = _code(indexed, index, levels, value.offset)
            for position, size in value.limits:
                code = T.if_then_else(position < size, code, T.int32(0))
            code = code if value.part is None else half(code, value.part)
            T.buffer_store(out, T.Cast("int8", code), [_flat(place, order.sizes)])

    levels = [] if indexed.levels is None else [Constant("int8", indexed.levels.size)]
    return KernelSource("arrange", (Constant("uint8", count), *levels, Constant("int8", prod(order.sizes))), body)


def nibbles(size: int, vector: int) -> KernelSource:
    """Kernel from `size` int8 codes in order, places of codes and a first vector to bytes of two places each."""

    def body(grid: KernelGrid, source: Any, places: Any, table: Any, out: Any) -> None:
        def place(index: Any) -> Any:
            return T.Cast("int32", places[T.Cast("int32", source[index]) + 128])

        with grid.each([vector]) as (lane,):
            T.buffer_store(out, table[lane], [lane])
        with grid.each([size // (2 * vector), vector]) as (pair, lane):
            first = pair * (2 * vector) + lane
            both = place(first) + T.shift_left(place(first + vector), T.int32(4))
            T.buffer_store(out, T.Cast("uint8", both), [vector + pair * vector + lane])

    shapes = [Constant("int8", size), Constant("uint8", 256), Constant("uint8", vector)]
    return KernelSource("nibbles", (*shapes, Constant("uint8", vector + size // 2)), body)


def bfloats(size: int) -> KernelSource:
    """Kernel from `size` int8 codes to the same numbers as bfloat16."""

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.each([size]) as (index,):
            T.buffer_store(out, bfloat16_bits(T.Cast("float32", source[index]), 1), [index])

    return KernelSource("bfloats", (Constant("int8", size), Constant("uint16", size)), body)


def _code(indexed: Indexed, index: Any, levels: Sequence[Any], offset: Any) -> Any:
    """The code at an offset in the model's order, as int32."""
    if not levels:
        return T.Cast("int32", index[offset]) - 2 ** (indexed.bits - 1)
    group = indexed.group
    return T.Cast("int32", levels[0][T.Cast("int32", index[offset // group]) * group + offset % group])


def _flat(place: Sequence[Any], sizes: Sequence[int]) -> Any:
    total: Any = 0
    for index, size in zip(place, sizes, strict=True):
        total = total * size + index
    return total


def real(panels: int, depth: int, width: int) -> KernelSource:
    """Kernel from int8 codes (panels, depth, width) and scales (panels, width) to float32."""
    size = panels * depth * width

    def body(grid: KernelGrid, source: Any, scales: Any, out: Any) -> None:
        with grid.each([panels, depth, width]) as (panel, k, channel):
            place = (panel * depth + k) * width + channel
            scale = scales[panel * width + channel]
            T.buffer_store(out, T.Cast("float32", source[place]) * scale, [place])

    shapes = [Constant("int8", size), Constant("float32", panels * width), Constant("float32", size)]
    return KernelSource("scale", tuple(shapes), body)
