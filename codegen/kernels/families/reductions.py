"""Sums, products, extremes and the like over any axes of row-major values of any type, element by element."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build, typed
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, expressed
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_INPUTS, USUAL


def _same(x: Any, _dtype: str) -> Any:
    return x


@dataclass(frozen=True)
class Reduction:
    """start: of a type. each: of an element and its type. last: of the total, its type, and the number of elements.

    may_cancel: whether terms of both signs are added up.
    """

    start: Callable[[str], Any]
    combine: Callable[[Any, Any], Any]
    each: Callable[[Any, str], Any] = _same
    last: Callable[[Any, str, int], Any] = lambda total, _dtype, _count: total
    may_cancel: bool = False


def _zero(dtype: str) -> Any:
    return typed.number(0, dtype)


def _lowest(dtype: str) -> Any:
    return typed.number(float("-inf") if typed.is_real(dtype) else np.iinfo(dtype).min, dtype)


def _highest(dtype: str) -> Any:
    return typed.number(float("inf") if typed.is_real(dtype) else np.iinfo(dtype).max, dtype)


def _add(a: Any, b: Any) -> Any:
    return a + b


def _square(x: Any, _dtype: str) -> Any:
    return x * x


REDUCTIONS = {
    "ReduceL1": Reduction(_zero, _add, lambda x, dtype: typed.absolute([x], [dtype])),
    "ReduceL2": Reduction(_zero, _add, _square, lambda total, _dtype, _count: T.sqrt(total)),
    "ReduceMax": Reduction(_lowest, lambda a, b: T.max(a, b)),
    "ReduceMean": Reduction(
        _zero, _add, last=lambda total, dtype, count: total / typed.number(count, dtype), may_cancel=True
    ),
    "ReduceMin": Reduction(_highest, lambda a, b: T.min(a, b)),
    "ReduceProd": Reduction(lambda dtype: typed.number(1, dtype), lambda a, b: a * b),
    "ReduceSum": Reduction(_zero, _add, may_cancel=True),
    "ReduceSumSquare": Reduction(_zero, _add, _square),
}
TYPES = ("float32", "float64", *typed.INTEGERS)
FOR_REALS_ONLY = ("ReduceL2", "ReduceMean")


def reduce(op_type: str, x: Layout, y: Layout, axes: Collection[int]) -> KernelSource:
    """One element of y for all of x along the axes."""
    how = REDUCTIONS[op_type]
    remaining = Layout(tuple(1 if axis in axes else size for axis, size in enumerate(x.shape)), x.dtype, row_major=True)
    count = prod(x.shape[axis] for axis in axes)

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.elements(remaining) as (sample, place):
            total = grid.registers(1, x.dtype)
            T.buffer_store(total, how.start(x.dtype), [0])
            with ExitStack() as loops:
                inner = [
                    loops.enter_context(T.serial(expressed(size))) if axis in axes else place[axis]
                    for axis, size in enumerate(x.shape)
                ]
                element = T.Bind(source[sample, x.offset(inner)])
                T.buffer_store(total, how.combine(total[0], how.each(element, x.dtype)), [0])
            T.buffer_store(out, how.last(total[0], x.dtype, count), [sample, remaining.offset(place)])

    return build(op_type.lower(), [x], [], y, body, accuracy=SUM_OF_INPUTS if how.may_cancel else USUAL)
