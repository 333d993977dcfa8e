"""What follows from lengths: sizes, computed once for all kernels of a call, and values that no input enters."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.writing import Constant, KernelGrid, KernelSource, expressed, in_int64
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import EXACT
from ptqc.runtime.lengths import Size


def computed(sizes: Sequence[tuple[Size, ...]], lengths: Sequence[str]) -> KernelSource:
    """Write the largest of each of these sizes."""

    def body(_grid: KernelGrid, out: Any) -> None:
        for place, several in enumerate(sizes):
            T.buffer_store(out, reduce(lambda a, b: T.max(a, b), map(in_int64, several)), [place])

    return KernelSource("sizes", (Constant("int64", len(sizes)),), body, lengths=tuple(lengths))


def part(y: Layout, values: np.ndarray, starts: Sequence[Size], steps: Sequence[int]) -> KernelSource:
    """Every `steps`-th element of an array that never changes, from `starts` on."""
    fixed = Layout(values.shape, str(values.dtype), row_major=True)

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            taken = [first + index * step for first, index, step in zip(starts, place, steps, strict=True)]
            T.buffer_store(out, source[fixed.offset(taken)], [sample, y.offset(place)])

    return build("part", [], [values], y, body, accuracy=EXACT, numbers=starts)


def filled(y: Layout, value: np.ndarray) -> KernelSource:
    """One number everywhere."""

    def body(grid: KernelGrid, number: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            T.buffer_store(out, number[0], [sample, y.offset(place)])

    return build("filled", [], [value.reshape(1)], y, body, accuracy=EXACT)


def numbers(y: Layout, values: Sequence[Size]) -> KernelSource:
    """Whole numbers that follow from the lengths of a call."""

    def body(grid: KernelGrid, out: Any) -> None:
        with grid.rows(1, 1) as (sample, _):
            for place, value in enumerate(values):
                T.buffer_store(out, T.Cast(y.dtype, expressed(value)), [sample, place])

    return build("numbers", [], [], y, body, accuracy=EXACT, numbers=values)


def steps(y: Layout, start: Size, step: int) -> KernelSource:
    """start, start + step and so on."""

    def body(grid: KernelGrid, out: Any) -> None:
        with grid.rows(y.elements, 1) as (sample, place):
            T.buffer_store(out, T.Cast(y.dtype, T.Cast("int64", place) * step + start), [sample, place])

    return build("range", [], [], y, body, accuracy=EXACT, numbers=[start])
