"""Operators that only move elements, on codes and on real values."""

from typing import Literal, cast

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.drafts import Alias, Concat, MaxPool, NearestResize, StridedSlice
from ptqc.codegen.kernels.emission import Emission
from ptqc.codegen.kernels.families import move
from ptqc.codegen.kernels.op_lowerings import indexing, lengths
from ptqc.codegen.kernels.op_lowerings.sliding import slide
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Unsupported
from ptqc.ir.nodes import input_of, integer, integers, producer, text
from ptqc.runtime.lengths import varies

# Below every code and every float32: what a largest-of-window ignores.
LOWEST = {"uint8": 0.0, "float32": -3.4028235e38}
BATCH = 0
# What Pad may fill in from its input: NumPy has the same under the same names.
Mode = Literal["reflect", "edge", "wrap"]


def reshape(emission: Emission, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze."""
    source = emission.plain(emission.read(node.inputs[0])) if _is_of_any_size(emission, node) else None
    emission.apply(node, lambda x, y: move.reshape(x, y, emission.isa), source)


def _is_of_any_size(emission: Emission, node: ir.Node) -> bool:
    """Whether what a node reads or makes varies in size."""
    return varies((*emission.sizes(node.inputs[0]), *emission.sizes(node.outputs[0])))


def transpose(emission: Emission, node: ir.Node) -> None:
    """Transpose."""
    rank = len(emission.sizes(node.inputs[0]))
    axes = integers(node, "perm", list(range(rank))[::-1])
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=axes[:1] != [BATCH])
    order = [axis - outer for axis in axes[outer:]]
    if outer:
        source = emission.operand(node.inputs[0])
        given = emission.layouts[source]
        if [order.index(axis) for axis in given.order] == sorted(order):
            _rename_axes(emission, node, source)
            return
    emission.apply(node, lambda x, y: move.transpose(x, y, order), outer=outer)


def _rename_axes(emission: Emission, node: ir.Node, source: str) -> None:
    """Transpose of a value that lies in memory as the plain result does."""
    given = emission.layouts[source]
    layout = Layout(emission.shape(node.outputs[0]), given.dtype, plain=True)
    emission.add(Alias(emission.isa), [source], str(node.outputs[0].name), layout)


def strided(emission: Emission, node: ir.Node) -> None:
    """Slice with constant bounds."""
    if _is_of_any_size(emission, node):
        lengths.strided(emission, node)
        return
    sizes = emission.sizes(node.inputs[0])
    rank = len(sizes)
    starts, ends = emission.number(node.inputs[1]), emission.number(node.inputs[2])
    axes = emission.number(node.inputs[3]) if input_of(node, 3) is not None else np.arange(len(starts))
    steps = emission.number(node.inputs[4]) if input_of(node, 4) is not None else np.ones(len(starts), np.int64)
    first, step = [0] * rank, [1] * rank
    for axis, start, end, stride in zip(axes % rank, starts, ends, steps, strict=True):
        chosen = range(*slice(int(start), int(end), int(stride)).indices(sizes[axis]))
        first[axis], step[axis] = chosen.start, chosen.step
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=first[0] != 0 or step[0] != 1)
    emission.apply(
        node, lambda _x, _y: StridedSlice(emission.isa, first[outer:], step[outer:]), outer=outer, stored=True
    )


def pad(emission: Emission, node: ir.Node) -> None:
    """Pad, with a constant or with elements of the input."""
    before, after = _pads(emission, node)
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=bool(before[BATCH] or after[BATCH]))
    mode = text(node, "mode", "constant")
    if mode != "constant":
        places = _own_elements(emission, node, cast(Mode, mode), before, after)
        emission.apply(node, lambda _x, _y: NearestResize(emission.isa, places[outer:]), outer=outer)
        return
    value = emission.number(node.inputs[2]).item() if input_of(node, 2) is not None else 0.0
    emission.apply(node, lambda x, y: move.pad(x, y, before[outer:], value, emission.isa), outer=outer)


def _pads(emission: Emission, node: ir.Node) -> tuple[list[int], list[int]]:
    """How many elements are added in front of each axis and behind it; fewer than none are cut off."""
    begins, ends = np.split(emission.number(node.inputs[1]), 2)
    rank = len(emission.sizes(node.inputs[0]))
    before, after = np.zeros(rank, np.int64), np.zeros(rank, np.int64)
    axes = emission.number(node.inputs[3]) if input_of(node, 3) is not None else np.arange(rank)
    before[axes], after[axes] = begins, ends
    return before.tolist(), after.tolist()


def _own_elements(
    emission: Emission, node: ir.Node, mode: Mode, before: list[int], after: list[int]
) -> list[np.ndarray]:
    """For each axis of a padded value, the places of the input that its elements come from."""
    if _is_of_any_size(emission, node):
        raise Unsupported("padding of what varies in size has a kernel for constants only")
    places = []
    for size, front, back in zip(emission.sizes(node.inputs[0]), before, after, strict=True):
        kept = np.arange(max(0, -front), size - max(0, -back))
        places.append(np.pad(kept, (max(0, front), max(0, back)), mode))
    return places


def gather(emission: Emission, node: ir.Node) -> None:
    """Gather: rows of an embedding, places that vary, and of constant ones a list, or one that takes the axis away."""
    if emission.is_constant(node.inputs[0]) and _is_embedding(emission, node):
        _look_up(emission, node)
        return
    sizes = emission.sizes(node.inputs[0])
    most = 0 if varies(sizes) else 1
    if not emission.is_constant(node.inputs[1]) or emission.number(node.inputs[1]).ndim > most:
        indexing.gather(emission, node)
        return
    axis = integer(node, "axis", 0) % len(sizes)
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=axis == BATCH)
    places = emission.number(node.inputs[1])
    if places.ndim == 0:
        source = emission.plain(emission.read(node.inputs[0]))
        place = int(places) if int(places) >= 0 else sizes[axis] + int(places)
        emission.apply(node, lambda x, y: move.pick(x, y, axis - outer, place), source, outer=outer)
        return
    places = places % sizes[axis]
    maps = [places if i == axis else np.arange(size) for i, size in enumerate(sizes)]
    emission.apply(node, lambda _x, _y: NearestResize(emission.isa, maps[outer:]), outer=outer)


def _is_embedding(emission: Emission, node: ir.Node) -> bool:
    """Whether rows of a float32 table are looked up at places that are an input of the model."""
    places = node.inputs[1]
    is_given = places is not None and (places.is_graph_input() or bool(emission.lengths and emission.sizes(places)))
    is_given = is_given and emission.dtype(places) == "int64"
    return is_given and integer(node, "axis", 0) == 0 and emission.dtype(node.inputs[0]) == "float32"


def _look_up(emission: Emission, node: ir.Node) -> None:
    """Gather of rows of a constant table at places that are an input of the model: an embedding."""
    table, places = emission.number(node.inputs[0]), emission.read(node.inputs[1])
    emission.limit_places(node.inputs[1], len(table))
    if not emission.layouts[places].outside:
        places = emission.plain(places)
    layout = Layout(emission.shape(node.outputs[0]), "float32", plain=True)
    kernel = move.look_up(emission.layouts[places], layout, _stored(emission, node.inputs[0]) or [table], len(table))
    emission.add(kernel, [places], str(node.outputs[0].name), layout)


def _stored(emission: Emission, table: ir.Value | None) -> list[Stored] | None:
    """The stored codes of a table and a scale for each row, if that is how it lies in the file."""
    maker = producer(table, "DequantizeLinear")
    if maker is None or integer(maker, "axis", 1) != 0:
        return None
    codes, scale = emission.number(maker.inputs[0]), emission.number(maker.inputs[1])
    if codes.dtype != np.int8 or scale.size != len(codes):
        return None
    order = Order((codes.size,), lambda place: IndexSource(place[0]))
    return [Arranged(codes, order), scale.astype(np.float32).reshape(-1)]


def repeat(emission: Emission, node: ir.Node) -> None:
    """Expand and Tile."""
    before, after = emission.sizes(node.inputs[0]), emission.sizes(node.outputs[0])
    outer = emission.outer(
        node.inputs[0], node.outputs[0], touched=len(before) != len(after) or before[:1] != after[:1]
    )
    emission.apply(node, lambda x, y: move.repeat(x.with_rank(len(y.shape)), y), outer=outer)


def concat(emission: Emission, node: ir.Node) -> None:
    """Concat along an axis."""
    axis = integer(node, "axis", 0) % len(emission.sizes(node.outputs[0]))
    if not emission.outer(*node.inputs, node.outputs[0], touched=axis == BATCH):
        parts = [emission.whole(value) for value in node.inputs]
        joined = Concat(emission.isa, axis)
        emission.add_whole(joined, [name for name, _ in parts], [given for _, given in parts], node.outputs[0])
        return
    names = emission.joinable(_parts(emission, node))
    first = emission.layouts[names[0]]
    layout = Layout(emission.shape(node.outputs[0]), first.dtype, plain=any(emission.layouts[n].plain for n in names))
    emission.add(Concat(emission.isa, axis - 1), names, str(node.outputs[0].name), layout)


def _parts(emission: Emission, node: ir.Node) -> list[str]:
    """The inputs of a concatenation, all of one type."""
    found = [emission.in_bfloat16(value) if emission.isa.bfloats else None for value in node.inputs]
    names = [name for name in found if name is not None]
    return names if len(names) == len(found) else [emission.read(value) for value in node.inputs]


def split(emission: Emission, node: ir.Node) -> None:
    """Split along an axis, one kernel per part."""
    rank, start = len(emission.sizes(node.inputs[0])), 0
    axis = integer(node, "axis", 0) % rank
    for value in node.outputs:
        outer = emission.outer(node.inputs[0], value, touched=axis == BATCH)
        starts = [start if i == axis else 0 for i in range(outer, rank)]
        part = StridedSlice(emission.isa, starts, [1] * len(starts))
        start += emission.sizes(value)[axis]
        if not outer:
            source, given = emission.whole(node.inputs[0])
            emission.add_whole(part, [source], [given], value)
            continue
        source = emission.operand(node.inputs[0], stored=True)
        given = emission.layouts[source]
        emission.add(part, [source], str(value.name), Layout(emission.shape(value), given.dtype, plain=given.plain))


def depth_to_space(emission: Emission, node: ir.Node) -> None:
    """DepthToSpace of planes."""
    emission.check_one_sample(node.inputs[0])
    block, columns_first = integer(node, "blocksize", 1), text(node, "mode", "DCR") == "CRD"
    emission.apply(node, lambda x, y: move.depth_to_space(x, y, block, columns_first=columns_first))


def largest(emission: Emission, node: ir.Node) -> None:
    """MaxPool over one or two axes."""
    if len(node.outputs) > 1:
        raise Unsupported("its indices have no kernel")
    name = emission.read(node.inputs[0])
    border = LOWEST[emission.layouts[name].dtype]
    source, window = slide(emission, node, name, integers(node, "kernel_shape", []), border)
    layout = Layout(emission.shape(node.outputs[0]), emission.layouts[source].dtype)
    emission.add(MaxPool(emission.isa, window), [source], str(node.outputs[0].name), layout)
