"""Operators that only move elements, on codes and on real values."""

from typing import Literal, cast

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import move
from ptqc.codegen.kernels.op_lowerings import indexing, lengths
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.kernels.pending import Alias, Concat, MaxPool, NearestResize, StridedSlice
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, integers, producer, text
from ptqc.runtime.lengths import varies

# Below every code and every float32: what a largest-of-window ignores.
LOWEST = {"uint8": 0.0, "float32": -3.4028235e38}
BATCH = 0
# What Pad may fill in from its input: NumPy has the same under the same names.
Mode = Literal["reflect", "edge", "wrap"]


def reshape(builder: ProgramBuilder, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    source = builder.row_major(builder.read(node.inputs[0])) if _is_of_any_size(builder, node) else None
    builder.apply(node, lambda x, y: move.reshape(x, y, builder.isa), source)


def _is_of_any_size(builder: ProgramBuilder, node: ir.Node) -> bool:
    """Whether what a node reads or makes varies in size."""
    return varies((*builder.sizes(node.inputs[0]), *builder.sizes(node.outputs[0])))


def transpose(builder: ProgramBuilder, node: ir.Node) -> None:
    """Transpose."""
    rank = len(builder.sizes(node.inputs[0]))
    axes = integers(node, "perm", list(range(rank))[::-1])
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=axes[:1] != [BATCH])
    order = [axis - outer for axis in axes[outer:]]
    if outer:
        source = builder.operand(node.inputs[0])
        layout_in = builder.layouts[source]
        if [order.index(axis) for axis in layout_in.order] == sorted(order):
            _rename_axes(builder, node, source)
            return
    builder.apply(node, lambda x, y: move.transpose(x, y, order), outer=outer)


def _rename_axes(builder: ProgramBuilder, node: ir.Node, source: str) -> None:
    """Transpose of a value that lies in memory as the row-major result does."""
    x = builder.layouts[source]
    layout = Layout(builder.shape(node.outputs[0]), x.dtype, row_major=True)
    builder.add(Alias(builder.isa), [source], str(node.outputs[0].name), layout)


def strided(builder: ProgramBuilder, node: ir.Node) -> None:
    """Slice with constant bounds."""
    if _is_of_any_size(builder, node):
        lengths.strided(builder, node)
        return
    sizes = builder.sizes(node.inputs[0])
    rank = len(sizes)
    starts, ends = builder.number(node.inputs[1]), builder.number(node.inputs[2])
    axes = builder.number(node.inputs[3]) if input_of(node, 3) is not None else np.arange(len(starts))
    steps = builder.number(node.inputs[4]) if input_of(node, 4) is not None else np.ones(len(starts), np.int64)
    first, step = [0] * rank, [1] * rank
    for axis, start, end, stride in zip(axes % rank, starts, ends, steps, strict=True):
        chosen = range(*slice(int(start), int(end), int(stride)).indices(sizes[axis]))
        first[axis], step[axis] = chosen.start, chosen.step
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=first[0] != 0 or step[0] != 1)
    builder.apply(node, lambda _x, _y: StridedSlice(builder.isa, first[outer:], step[outer:]), outer=outer, stored=True)


def pad(builder: ProgramBuilder, node: ir.Node) -> None:
    """Pad, with a constant or with elements of the input."""
    before, after = _pads(builder, node)
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=bool(before[BATCH] or after[BATCH]))
    mode = text(node, "mode", "constant")
    if mode != "constant":
        places = _own_elements(builder, node, cast(Mode, mode), before, after)
        builder.apply(node, lambda _x, _y: NearestResize(builder.isa, places[outer:]), outer=outer)
        return
    value = builder.number(node.inputs[2]).item() if input_of(node, 2) is not None else 0.0
    builder.apply(node, lambda x, y: move.pad(x, y, before[outer:], value, builder.isa), outer=outer)


def _pads(builder: ProgramBuilder, node: ir.Node) -> tuple[list[int], list[int]]:
    """How many elements are added in front of each axis and behind it; fewer than none are cut off."""
    begins, ends = np.split(builder.number(node.inputs[1]), 2)
    rank = len(builder.sizes(node.inputs[0]))
    before, after = np.zeros(rank, np.int64), np.zeros(rank, np.int64)
    axes = builder.number(node.inputs[3]) if input_of(node, 3) is not None else np.arange(rank)
    before[axes], after[axes] = begins, ends
    return before.tolist(), after.tolist()


def _own_elements(
    builder: ProgramBuilder, node: ir.Node, mode: Mode, before: list[int], after: list[int]
) -> list[np.ndarray]:
    """For each axis of a padded value, the places of the input that its elements come from."""
    if _is_of_any_size(builder, node):
        raise UnsupportedOp("padding of what varies in size has a kernel for constants only")
    places = []
    for size, front, back in zip(builder.sizes(node.inputs[0]), before, after, strict=True):
        remaining = np.arange(max(0, -front), size - max(0, -back))
        places.append(np.pad(remaining, (max(0, front), max(0, back)), mode))
    return places


def gather(builder: ProgramBuilder, node: ir.Node) -> None:
    """Gather: rows of an embedding, places that vary, and of constant ones a list, or one that takes the axis away."""
    if builder.is_constant(node.inputs[0]) and _is_embedding(builder, node):
        _look_up(builder, node)
        return
    sizes = builder.sizes(node.inputs[0])
    most = 0 if varies(sizes) else 1
    if not builder.is_constant(node.inputs[1]) or builder.number(node.inputs[1]).ndim > most:
        indexing.gather(builder, node)
        return
    axis = integer(node, "axis", 0) % len(sizes)
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=axis == BATCH)
    places = builder.number(node.inputs[1])
    if places.ndim == 0:
        source = builder.row_major(builder.read(node.inputs[0]))
        place = int(places) if int(places) >= 0 else sizes[axis] + int(places)
        builder.apply(node, lambda x, y: move.pick(x, y, axis - outer, place), source, outer=outer)
        return
    places = places % sizes[axis]
    maps = [places if i == axis else np.arange(size) for i, size in enumerate(sizes)]
    builder.apply(node, lambda _x, _y: NearestResize(builder.isa, maps[outer:]), outer=outer)


def _is_embedding(builder: ProgramBuilder, node: ir.Node) -> bool:
    """Whether rows of a float32 table are looked up at places that are an input of the model."""
    places = node.inputs[1]
    is_given = places is not None and (places.is_graph_input() or bool(builder.lengths and builder.sizes(places)))
    is_given = is_given and builder.dtype(places) == "int64"
    return is_given and integer(node, "axis", 0) == 0 and builder.dtype(node.inputs[0]) == "float32"


def _look_up(builder: ProgramBuilder, node: ir.Node) -> None:
    """Gather of rows of a constant table at places that are an input of the model: an embedding."""
    table, places = builder.number(node.inputs[0]), builder.read(node.inputs[1])
    builder.limit_places(node.inputs[1], len(table))
    if not builder.layouts[places].is_io:
        places = builder.row_major(places)
    layout = Layout(builder.shape(node.outputs[0]), "float32", row_major=True)
    kernel = move.look_up(builder.layouts[places], layout, _stored(builder, node.inputs[0]) or [table], len(table))
    builder.add(kernel, [places], str(node.outputs[0].name), layout)


def _stored(builder: ProgramBuilder, table: ir.Value | None) -> list[Stored] | None:
    """The stored codes of a table and a scale for each row, if that is how it lies in the file."""
    maker = producer(table, "DequantizeLinear")
    if maker is None or integer(maker, "axis", 1) != 0:
        return None
    codes, scale = builder.number(maker.inputs[0]), builder.number(maker.inputs[1])
    if codes.dtype != np.int8 or scale.size != len(codes):
        return None
    order = Order((codes.size,), lambda place: IndexSource(place[0]))
    return [Arranged(codes, order), scale.astype(np.float32).reshape(-1)]


def repeat(builder: ProgramBuilder, node: ir.Node) -> None:
    """Expand and Tile."""
    before, after = builder.sizes(node.inputs[0]), builder.sizes(node.outputs[0])
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=len(before) != len(after) or before[:1] != after[:1])
    builder.apply(node, lambda x, y: move.repeat(x.with_rank(len(y.shape)), y), outer=outer)


def concat(builder: ProgramBuilder, node: ir.Node) -> None:
    """Concat along an axis."""
    axis = integer(node, "axis", 0) % len(builder.sizes(node.outputs[0]))
    if not builder.outer(*node.inputs, node.outputs[0], touched=axis == BATCH):
        parts = [builder.whole(value) for value in node.inputs]
        joined = Concat(builder.isa, axis)
        builder.add_whole(joined, [name for name, _ in parts], [operand for _, operand in parts], node.outputs[0])
        return
    names = builder.joinable(_parts(builder, node))
    first = builder.layouts[names[0]]
    layout = Layout(
        builder.shape(node.outputs[0]), first.dtype, row_major=any(builder.layouts[n].row_major for n in names)
    )
    builder.add(Concat(builder.isa, axis - 1), names, str(node.outputs[0].name), layout)


def _parts(builder: ProgramBuilder, node: ir.Node) -> list[str]:
    results = [builder.in_bfloat16(value) if builder.isa.bfloats else None for value in node.inputs]
    names = [name for name in results if name is not None]
    return names if len(names) == len(results) else [builder.read(value) for value in node.inputs]


def split(builder: ProgramBuilder, node: ir.Node) -> None:
    """Split along an axis, one kernel per part."""
    rank, start = len(builder.sizes(node.inputs[0])), 0
    axis = integer(node, "axis", 0) % rank
    for value in node.outputs:
        outer = builder.outer(node.inputs[0], value, touched=axis == BATCH)
        starts = [start if i == axis else 0 for i in range(outer, rank)]
        part = StridedSlice(builder.isa, starts, [1] * len(starts))
        start += builder.sizes(value)[axis]
        if not outer:
            source, x = builder.whole(node.inputs[0])
            builder.add_whole(part, [source], [x], value)
            continue
        source = builder.operand(node.inputs[0], stored=True)
        x = builder.layouts[source]
        builder.add(part, [source], str(value.name), Layout(builder.shape(value), x.dtype, row_major=x.row_major))


def depth_to_space(builder: ProgramBuilder, node: ir.Node) -> None:
    """DepthToSpace of planes."""
    builder.check_one_sample(node.inputs[0])
    block, columns_first = integer(node, "blocksize", 1), text(node, "mode", "DCR") == "CRD"
    builder.apply(node, lambda x, y: move.depth_to_space(x, y, block, columns_first=columns_first))


def largest(builder: ProgramBuilder, node: ir.Node) -> None:
    """MaxPool over one or two axes."""
    if len(node.outputs) > 1:
        raise UnsupportedOp("its indices have no kernel")
    name = builder.read(node.inputs[0])
    border = LOWEST[builder.layouts[name].dtype]
    source, window = slide(builder, node, name, integers(node, "kernel_shape", []), border)
    layout = Layout(builder.shape(node.outputs[0]), builder.layouts[source].dtype)
    builder.add(MaxPool(builder.isa, window), [source], str(node.outputs[0].name), layout)
