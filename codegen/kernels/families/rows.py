"""Sums, means, largest elements, softmax and layer normalization along neighbouring axes of a row-major value."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import mathematics
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, fill, in_float32, in_vectors, span, to_codes, vector
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_INPUTS, USUAL, Accuracy
from ptqc.runtime.lengths import Size

Element = Callable[[Any, int], Any]  # of index and count: that many elements from the index on
CODES = 256
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Rows:
    """Runs of elements. count: of runs; length: of each; stride: between its elements."""

    count: Size
    length: Size
    stride: Size
    lanes: int

    @classmethod
    def along(cls, shape: Sequence[Size], first: int, last: int, isa: Isa) -> "Rows":
        """Axes first … last of a row-major value."""
        stride = prod(shape[last + 1 :])
        length = prod(shape[first : last + 1])
        return cls(prod(shape) // length, length, stride, isa.lanes if stride == 1 else 1)

    def place(self, row: Any, index: Any, lanes: int) -> Any:
        """Where elements of a run lie."""
        start = row // self.stride * (self.length * self.stride) + row % self.stride
        return span(start + index * self.stride, lanes)

    def each(self, visit: Callable[[Any, int], None]) -> None:
        """Visit a run: vectors, then what is left."""
        in_vectors(self.length, self.lanes, visit)

    def fold(self, grid: KernelGrid, start: float, combine: Callable[[Any, Any], Any], element: Element) -> Any:
        """All elements of a run, combined."""
        vector = grid.registers(self.lanes, "float32")
        single = grid.registers(1, "float32")
        first = _number(start)
        T.buffer_store(vector, fill(first, self.lanes), [span(0, self.lanes)])
        T.buffer_store(single, first, [0])

        def visit(index: Any, lanes: int) -> None:
            total = vector if lanes == self.lanes else single
            T.buffer_store(total, combine(total[span(0, lanes)], element(index, lanes)), [span(0, lanes)])

        self.each(visit)
        with T.serial(self.lanes) as lane:
            T.buffer_store(single, combine(single[0], vector[lane]), [0])
        return T.Bind(single[0])


def _number(value: float) -> Any:
    """A float32; infinities from a logarithm, since TVM writes them in no way that C has."""
    if math.isfinite(value):
        return T.float32(value)
    lowest = T.log(T.float32(0))
    return lowest if value < 0 else T.float32(0) - lowest


def _sum(a: Any, b: Any) -> Any:
    return a + b


FOLDS: dict[str, tuple[float, Callable[[Any, Any], Any]]] = {
    "ReduceSum": (0.0, _sum),
    "ReduceMean": (0.0, _sum),
    "ReduceMax": (-math.inf, lambda a, b: T.max(a, b)),
    "ReduceMin": (math.inf, lambda a, b: T.min(a, b)),
}


def fold(op_type: str, x: Layout, y: Layout, isa: Isa, first: int, last: int) -> KernelSource:
    """One number for each run along axes first … last."""
    runs = Rows.along(x.shape, first, last, isa)
    start, combine = FOLDS[op_type]

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.rows(runs.count, x.elements) as (sample, row):
            total = runs.fold(grid, start, combine, lambda i, lanes: source[sample, runs.place(row, i, lanes)])
            T.buffer_store(out, total / in_float32(runs.length) if op_type == "ReduceMean" else total, [sample, row])

    return build(op_type.lower(), [x], [], y, body, accuracy=SUM_OF_INPUTS if combine is _sum else USUAL)


def softmax(x: Layout, y: Layout, isa: Isa, axis: int, *, logarithm: bool) -> KernelSource:
    """exp(x) over its sum along an axis, or the logarithm of that."""
    runs = Rows.along(x.shape, axis, axis, isa)

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.rows(runs.count, 20 * x.elements) as (sample, row):

            def element(index: Any, lanes: int) -> Any:
                return source[sample, runs.place(row, index, lanes)]

            largest = runs.fold(grid, *FOLDS["ReduceMax"], element)

            def power(index: Any, lanes: int) -> Any:
                result = T.Bind(mathematics.exp_of_differences(element(index, lanes) - fill(largest, lanes), lanes))
                if not logarithm:
                    T.buffer_store(out, result, [sample, runs.place(row, index, lanes)])
                return result

            total = runs.fold(grid, *FOLDS["ReduceSum"], power)
            remainder = T.Bind(T.log(total) if logarithm else T.float32(1) / total)

            def settle(index: Any, lanes: int) -> None:
                place = runs.place(row, index, lanes)
                centred = element(index, lanes) - fill(largest, lanes)
                value = centred - fill(remainder, lanes) if logarithm else out[sample, place] * fill(remainder, lanes)
                T.buffer_store(out, value, [sample, place])

            runs.each(settle)

    return build("log_softmax" if logarithm else "softmax", [x], [], y, body)


def softmax_codes(
    x: Layout,
    y: Layout,
    isa: Isa,
    axis: int,
    table: np.ndarray,
    steps: float,
    zero_point: int,
    *,
    in_float64: bool,
) -> KernelSource:
    """Codes of softmax along an axis (`ptqc.ir.integer_arithmetic.softmax`)."""
    runs = Rows.along(x.shape, axis, axis, isa)

    def body(grid: KernelGrid, source: Any, powers: Any, numbers: Any, out: Any) -> None:
        with grid.rows(runs.count, 5 * x.elements) as (sample, row):

            def code(index: Any, lanes: int) -> Any:
                return T.Cast(vector("int32", lanes), source[sample, runs.place(row, index, lanes)])

            def power(index: Any, lanes: int) -> Any:
                return powers[code(index, lanes) + fill(shift, lanes)]

            largest = runs.fold(grid, 0.0, FOLDS["ReduceMax"][1], lambda i, n: T.Cast(vector("float32", n), code(i, n)))
            shift = T.Bind(T.int32(CODES - 1) - T.Cast("int32", largest))
            total = replace(runs, lanes=1).fold(grid, 0.0, _sum, power)

            def settle(index: Any, lanes: int) -> None:
                kind = vector("float64" if in_float64 else "float32", lanes)
                product = T.Bind(T.Cast(kind, power(index, lanes)) * T.Cast(kind, fill(numbers[0], lanes)))
                if not in_float64:
                    product = T.Select(product > fill(T.float32(-LOWEST), lanes), fill(T.float32(0), lanes), product)
                share = T.nearbyint(product / T.Cast(kind, fill(total, lanes)))
                value = to_codes(T.Cast(vector("float32", lanes), share) + fill(numbers[1], lanes), lanes)
                T.buffer_store(out, value, [sample, runs.place(row, index, lanes)])

            runs.each(settle)

    return build("softmax_codes", [x], [table, np.array([steps, zero_point], np.float32)], y, body)


def normalize(
    x: Layout, y: Layout, isa: Isa, axis: int, epsilon: float, scale: np.ndarray, bias: np.ndarray
) -> KernelSource:
    """(x − mean) / √(variance + epsilon) · scale + bias along the axes from `axis` on.

    The mean is corrected by the mean of what it leaves: where a row hardly varies, its rounding would be all there is.
    """
    runs = Rows.along(x.shape, axis, len(x.shape) - 1, isa)

    def body(grid: KernelGrid, source: Any, numbers: Any, scales: Any, biases: Any, out: Any) -> None:
        with grid.rows(runs.count, 5 * x.elements) as (sample, row):

            def less(mean: Any, index: Any, lanes: int) -> Any:
                return T.Bind(source[sample, runs.place(row, index, lanes)] - fill(mean, lanes))

            def square(index: Any, lanes: int) -> Any:
                centred = less(mean, index, lanes)
                return centred * centred

            rough = T.Bind(runs.fold(grid, 0.0, _sum, partial(less, T.float32(0))) / numbers[1])
            mean = T.Bind(rough + runs.fold(grid, 0.0, _sum, partial(less, rough)) / numbers[1])
            deviation = T.Bind(T.sqrt(runs.fold(grid, 0.0, _sum, square) / numbers[1] + numbers[0]))

            def settle(index: Any, lanes: int) -> None:
                scaled = less(mean, index, lanes) / fill(deviation, lanes) * scales[span(index, lanes)]
                T.buffer_store(out, scaled + biases[span(index, lanes)], [sample, runs.place(row, index, lanes)])

            runs.each(settle)

    constants = [np.array([epsilon, runs.length], np.float32), scale.astype(np.float32), bias.astype(np.float32)]
    accuracy = Accuracy(axes=len(x.shape) - axis, epsilon=epsilon, gain=float(np.abs(scale).max(initial=0.0)))
    return build("normalize", [x], constants, y, body, accuracy=accuracy)
