"""Products of two activations in float32: vectors run over the columns of the second."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, expressed, fill, in_vectors, rounded_up, span
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS
from ptqc.runtime.lengths import varies

LARGEST_TILE = 4


def real(a: Layout, b: Layout, y: Layout, isa: Isa) -> KernelSource:
    """Matrices are the last two axes of row-major values; axes in front may repeat."""
    if varies(y.shape[-2:]):
        return _of_any_size(a, b, y, isa)
    (height, width), depth = y.shape[-2:], a.shape[-1]
    lanes, tile = min(isa.lanes, width), min(LARGEST_TILE, height)
    tiles, blocks = -(-height // tile), -(-width // lanes)
    heads = Layout(y.shape[:-2], "float32", row_major=True)

    def body(grid: KernelGrid, left: Any, right: Any, out: Any) -> None:
        work = prod(y.shape) * depth
        with grid.nest((heads.elements * tiles, blocks), work) as (sample, (index, block)):
            row = T.Bind(T.min(index % tiles * tile, height - tile))
            column = T.Bind(T.min(block * lanes, width - lanes))
            place = heads.place(index // tiles)
            first, second = (T.Bind(_matrix(layout, place)) for layout in (a, b))
            totals = grid.registers(tile * lanes, "float32")
            for i in range(tile):
                T.buffer_store(totals, fill(T.float32(0), lanes), [span(i * lanes, lanes)])
            with T.serial(expressed(depth)) as k:
                vector = T.Bind(right[sample, span(second + k * width + column, lanes)])
                for i in range(tile):
                    at = span(i * lanes, lanes)
                    factor = fill(left[sample, first + (row + i) * depth + k], lanes)
                    T.buffer_store(totals, totals[at] + factor * vector, [at])
            for i in range(tile):
                start = (index // tiles * height + row + i) * width + column
                T.buffer_store(out, totals[span(i * lanes, lanes)], [sample, span(start, lanes)])

    return build("matmul_float", [a, b], [], y, body, accuracy=SUM_OF_PRODUCTS)


def _of_any_size(a: Layout, b: Layout, y: Layout, isa: Isa) -> KernelSource:
    """The same of matrices whose height or width varies: the last rows of a tile may be one row several times, and
    columns that fill no vector go one by one.
    """
    (height, width), depth = y.shape[-2:], a.shape[-1]
    tile = LARGEST_TILE if varies([height]) else min(LARGEST_TILE, height)
    lanes = isa.lanes if varies([width]) else min(isa.lanes, width)
    heads = Layout(y.shape[:-2], "float32", row_major=True)

    def body(grid: KernelGrid, left: Any, right: Any, out: Any) -> None:
        tiles = rounded_up(height, tile)
        with grid.rows(heads.elements * tiles, prod(y.shape) * depth) as (sample, index):
            place, first_row = heads.place(index // tiles), index % tiles * tile
            first, second = (T.Bind(expressed(_matrix(layout, place))) for layout in (a, b))
            matrix = T.Bind(T.Cast("int64", index // tiles) * height * width)
            row_of = [T.Bind(T.min(T.Cast("int64", first_row + i), expressed(height - 1))) for i in range(tile)]

            def columns(column: Any, lanes: int) -> None:
                totals = grid.registers(tile * lanes, "float32")
                for i in range(tile):
                    T.buffer_store(totals, fill(T.float32(0), lanes), [span(i * lanes, lanes)])
                with T.serial(expressed(depth)) as k:
                    vector = T.Bind(right[sample, span(second + k * width + column, lanes)])
                    for i, row in enumerate(row_of):
                        at = span(i * lanes, lanes)
                        factor = fill(left[sample, first + row * depth + k], lanes)
                        T.buffer_store(totals, totals[at] + factor * vector, [at])
                for i, row in enumerate(row_of):
                    start = matrix + row * width + column
                    T.buffer_store(out, totals[span(i * lanes, lanes)], [sample, span(start, lanes)])

            in_vectors(width, lanes, columns)

    return build("matmul_float", [a, b], [], y, body, accuracy=SUM_OF_PRODUCTS)


def matrices(a: Layout, b: Layout) -> tuple[Layout, Layout]:
    """Two row-major values with as many axes, the last two of which are matrices, as ONNX's MatMul takes them."""
    right = b if len(b.shape) > 1 else replace(b, shape=(*b.shape, 1))
    rank = max(len(a.shape), len(right.shape))
    return a.with_rank(rank), right.with_rank(rank)


def _matrix(layout: Layout, place: Sequence[Any]) -> Any:
    """Where the matrix with these leading indices starts."""
    leading = Layout(layout.shape[:-2], layout.dtype, row_major=True)
    inner = [0 if size == 1 else index for size, index in zip(leading.shape, place, strict=True)]
    return leading.offset(inner) * (layout.shape[-2] * layout.shape[-1])
