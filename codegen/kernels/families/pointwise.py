"""Operators that compute each output from the elements at one place: arithmetic on codes, tables, float functions.

Equal layouts are one run of vectors; anything else (broadcast operands, another order in memory) goes element by
element.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import mathematics
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import (
    KernelGrid,
    KernelSource,
    expressed,
    fill,
    in_vectors,
    load,
    rounded_up,
    span,
    store,
    to_codes,
    vector,
)
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import EXACT
from ptqc.ir.integer_arithmetic import Reals
from ptqc.runtime.lengths import varies

Value = Callable[..., Any]
# Vectors that one turn of a loop over elements takes, where their number is that of a call.
BLOCKS = 64
# A value, or an array that is the same for all samples: of the output's rank, or 1 along an axis.
Operand = Layout | np.ndarray


def pointwise(
    family: str, operands: Sequence[Operand], constants: Sequence[np.ndarray], y: Layout, isa: Isa, value: Value
) -> KernelSource:
    """value(lanes, constant buffers, *elements) gives the output element (or vector)."""
    inputs = [x for x in operands if isinstance(x, Layout)]
    arrays = [x for x in operands if not isinstance(x, Layout)]
    alike = (x.shape == y.shape and x.order == y.order for x in inputs)
    values = (*inputs, y)
    same = all(alike) and not any(x.parent_buffer is not None for x in values)
    if varies(y.shape):
        flat = _flat_of_any_size
    else:
        flat = _flat
        same &= y.elements >= isa.lanes or not any(x.is_io for x in values)
    body = flat(inputs, y, isa, value) if same and not arrays else _by_element(operands, y, value)
    return build(family, inputs, [*arrays, *constants], y, body)


def by_element(family: str, operands: Sequence[Operand], y: Layout, value: Value) -> KernelSource:
    """value(*elements) gives the output element; arrays and values of any types."""
    inputs = [x for x in operands if isinstance(x, Layout)]
    arrays = [x for x in operands if not isinstance(x, Layout)]
    body = _by_element(operands, y, lambda _lanes, _constants, *elements: value(*elements))
    return build(family, inputs, arrays, y, body)


def with_array(family: str, x: Layout, y: Layout, array: np.ndarray, value: Callable[[Any, Any], Any]) -> KernelSource:
    """value(element, number) with the constant's number at the same place; array: of y's rank, or 1 along an axis."""
    fixed = Layout(array.shape, "float32", row_major=True)

    def body(grid: KernelGrid, source: Any, numbers: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            element = T.Bind(load(x, source, sample, x.offset(_within(x, place)), 1))
            number = T.Bind(numbers[fixed.offset(_within(fixed, place))])
            store(y, out, value(element, number), sample, y.offset(place), 1)

    return build(family, [x], [array.astype(np.float32)], y, body)


def with_vector(
    family: str,
    x: Layout,
    y: Layout,
    isa: Isa,
    numbers_of: np.ndarray,
    operation: Callable[[Any, Any], Any],
    rounding: tuple[float, int] | None = None,
) -> KernelSource:
    """operation(element, number) with the number of the element's channel; of row-major values.

    numbers_of: (channels,). rounding: scale and zero point of codes that the results become.
    """
    channels, count = len(numbers_of), x.elements // len(numbers_of)
    lanes = min(isa.lanes, channels)
    constants = [numbers_of.astype(np.float32), *([np.array(rounding, np.float32)] if rounding else [])]

    def body(grid: KernelGrid, source: Any, numbers: Any, *buffers: Any) -> None:
        *steps, out = buffers
        with grid.nest((count, -(-channels // lanes)), y.elements) as (sample, (row, block)):
            channel = T.Bind(T.min(block * lanes, channels - lanes))
            place = row * channels + channel
            element = T.Bind(load(x, source, sample, place, lanes))
            result = operation(element, numbers[span(channel, lanes)])
            if rounding:
                result = to_codes(_nearest(result, lanes, steps[0]), lanes)
            store(y, out, result, sample, place, lanes)

    return build(f"{family}_quantize" if rounding else family, [x], constants, y, body)


def _nearest(x: Any, lanes: int, numbers: Any) -> Any:
    """Whole numbers of steps of a scale, and the zero point: numbers."""
    scale, zero = (fill(numbers[i], lanes) for i in range(2))
    return T.nearbyint(x / scale) + zero


def _flat(inputs: Sequence[Layout], y: Layout, isa: Isa, value: Value) -> Any:
    blocks, last = -(-y.elements // isa.lanes), max(0, y.elements - isa.lanes)
    chunk = max(1, blocks // 16)

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *sources, out = buffers
        with grid.nest((-(-blocks // chunk), chunk), y.elements) as (sample, (part, index)):
            place = T.Bind(T.min((part * chunk + index) * isa.lanes, last))
            buffers_of = zip(inputs, sources, strict=False)
            values = [T.Bind(load(x, buffer, sample, place, isa.lanes)) for x, buffer in buffers_of]
            store(y, out, value(isa.lanes, sources[len(inputs) :], *values), sample, place, isa.lanes)

    return body


def _flat_of_any_size(inputs: Sequence[Layout], y: Layout, isa: Isa, value: Value) -> Any:
    step = BLOCKS * isa.lanes

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *sources, out = buffers

        with grid.rows(rounded_up(y.elements, step), y.elements) as (sample, part):
            start = T.Bind(T.Cast("int64", part) * step)
            count = T.Bind(T.min(T.int64(step), expressed(y.elements) - start))

            def store_at(place: Any, lanes: int) -> None:
                buffers_of = zip(inputs, sources, strict=False)
                values = [T.Bind(load(x, buffer, sample, start + place, lanes)) for x, buffer in buffers_of]
                store(y, out, value(lanes, sources[len(inputs) :], *values), sample, start + place, lanes)

            in_vectors(count, isa.lanes, store_at)

    return body


def _by_element(operands: Sequence[Operand], y: Layout, value: Value) -> Any:
    # Buffers come in this order: values, arrays, numbers.
    order = sorted(range(len(operands)), key=lambda i: not isinstance(operands[i], Layout))

    def body(grid: KernelGrid, *buffers: Any) -> None:
        *inputs, out = buffers
        with grid.elements(y) as (sample, place):
            values = {i: _element(operands[i], buffer, sample, place) for i, buffer in zip(order, inputs, strict=False)}
            numbers = inputs[len(operands) :]
            target = value(1, numbers, *(values[i] for i in range(len(operands))))
            store(y, out, target, sample, y.offset(place), 1)

    return body


def _element(operand: Operand, buffer: Any, sample: Any, place: Sequence[Any]) -> Any:
    if isinstance(operand, Layout):
        return T.Bind(load(operand, buffer, sample, operand.offset(_within(operand, place)), 1))
    fixed = Layout(operand.shape, str(operand.dtype), row_major=True)
    return T.Bind(buffer[fixed.offset(_within(fixed, place))])


def _within(layout: Layout, place: Sequence[Any]) -> list[Any]:
    """The place in an operand that is repeated along its axes of size 1."""
    return [0 if size == 1 else index for size, index in zip(layout.shape, place, strict=True)]


def add(operands: Sequence[Operand], y: Layout, isa: Isa, numbers: Reals) -> KernelSource:
    """Codes of a sum a + b; numbers: ratio of a, ratio of b, and what both leave (`ptqc.ir.integer_arithmetic.add`)."""

    def value(lanes: int, constants: Sequence[Any], left: Any, right: Any) -> Any:
        operands = _real(left, lanes), _real(right, lanes)
        total = mathematics.weighted(constants[0], *operands, lanes, in_c=isa.kind != "llvm")
        return to_codes(T.nearbyint(total), lanes)

    return pointwise("add", operands, [numbers], y, isa, value)


def mul(operands: Sequence[Operand], y: Layout, isa: Isa, zeros: tuple[int, int, int], factor: float) -> KernelSource:
    """Codes of a product; zeros of a, b and y, factor s_a · s_b / s_y (`ptqc.ir.integer_arithmetic.mul`)."""

    def value(lanes: int, constants: Sequence[Any], left: Any, right: Any) -> Any:
        whole = vector("int32", lanes)
        left = T.Cast(whole, left) - fill(constants[0][0], lanes)
        right = T.Cast(whole, right) - fill(constants[0][1], lanes)
        scaled = T.Cast(vector("float32", lanes), left * right) * fill(constants[1][0], lanes)
        scaled = mathematics.rounded_here(scaled, lanes, in_c=isa.kind != "llvm")
        zero = T.Cast("float32", constants[0][2])
        return to_codes(T.nearbyint(scaled + fill(zero, lanes)), lanes)

    constants = [np.array(zeros, np.int32), np.array([factor], np.float32)]
    return pointwise("mul", operands, constants, y, isa, value)


def table(x: Layout, y: Layout, isa: Isa, entries: np.ndarray, family: str = "table") -> KernelSource:
    """y = entries[x] of codes x; of the type of y."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        return constants[0][T.Cast(vector("int32", lanes), element)]

    return pointwise(family, [x], [entries.astype(y.stored)], y, isa, value)


def limit(x: Layout, y: Layout, isa: Isa, low: int, high: int) -> KernelSource:
    """Codes between two codes."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        return T.min(T.max(element, fill(constants[0][0], lanes)), fill(constants[0][1], lanes))

    return pointwise("limit", [x], [np.array([low, high], np.uint8)], y, isa, value)


def quantize(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> KernelSource:
    """Codes of real values."""
    return _rounded("quantize", x, y, isa, (scale, zero_point), lambda steps, zero: T.nearbyint(steps) + zero)


def quantize_moved(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> KernelSource:
    """Codes of real values, rounded after the zero point was added: means half way between codes go elsewhere."""
    return _rounded("quantize_moved", x, y, isa, (scale, zero_point), lambda steps, zero: T.nearbyint(steps + zero))


def _rounded(
    family: str, x: Layout, y: Layout, isa: Isa, numbers: tuple[float, int], rounding: Callable[[Any, Any], Any]
) -> KernelSource:
    """numbers: scale and zero point. rounding: of steps of the scale and the zero point, to codes not yet saturated."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        scale, zero = (fill(constants[0][i], lanes) for i in range(2))
        return to_codes(rounding(element / scale, zero), lanes)

    return pointwise(family, [x], [np.array(numbers, np.float32)], y, isa, value)


def dequantize(x: Layout, y: Layout, isa: Isa, scale: float, zero_point: int) -> KernelSource:
    """Real values of codes."""

    def value(lanes: int, constants: Sequence[Any], element: Any) -> Any:
        return (_real(element, lanes) - fill(constants[0][1], lanes)) * fill(constants[0][0], lanes)

    built = pointwise("dequantize", [x], [np.array([scale, zero_point], np.float32)], y, isa, value)
    return replace(built, accuracy=EXACT)


def quantize_float8(
    x: Layout, y: Layout, isa: Isa, scale: float, code: Callable[[Any], Any], family: str = "quantize_float8"
) -> KernelSource:
    """Codes of FP8 of real values. code: rounds one."""

    def value(_lanes: int, constants: Sequence[Any], element: Any) -> Any:
        return code(element / constants[0][0])

    return pointwise(family, [x], [np.array([scale], np.float32)], y, isa, value)


def dequantize_float8(x: Layout, y: Layout, isa: Isa, scale: float) -> KernelSource:
    """Real values of codes of FP8."""
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale)
    return replace(table(x, y, isa, every, "dequantize_float8"), accuracy=EXACT)


def copy(x: Layout, y: Layout, isa: Isa) -> KernelSource:
    """The same values in another order in memory."""
    return replace(pointwise("copy", [x], [], y, isa, lambda _lanes, _constants, element: element), accuracy=EXACT)


def _real(element: Any, lanes: int) -> Any:
    return T.Cast(vector("float32", lanes), T.Cast(vector("int32", lanes), element))
