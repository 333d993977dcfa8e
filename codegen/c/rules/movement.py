"""Values elsewhere or in another order: codes as they are, and real values."""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.builder import REAL, NetworkBuilder
from ptqc.codegen.c.network import Argument, CTensor, Place, Step, plain, renamed
from ptqc.codegen.program.folding import compute, standalone
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, integers, text


def reshape(builder: NetworkBuilder, node: ir.Node) -> None:
    """The same memory in another shape."""
    source = builder.plain(builder.read(node.inputs[0]))
    name = str(node.outputs[0].name)
    shape = builder.shapes[name]
    builder.place(name, renamed(source, shape=shape, order=plain(len(shape))))


def same(builder: NetworkBuilder, node: ir.Node) -> None:
    """The same value."""
    builder.place(str(node.outputs[0].name), builder.read(node.inputs[0]))


def transpose(builder: NetworkBuilder, node: ir.Node) -> None:
    """The same memory with axes called otherwise."""
    source = builder.read(node.inputs[0])
    rank = len(source.shape)
    perm = integers(node, "perm", list(reversed(range(rank))))
    order = tuple(perm.index(axis) for axis in source.order)
    builder.place(
        str(node.outputs[0].name), renamed(source, shape=tuple(source.shape[axis] for axis in perm), order=order)
    )


def concat(builder: NetworkBuilder, node: ir.Node) -> None:
    """Values one behind the other."""
    parts = [builder.read(value) for value in node.inputs]
    target = builder.output(node.outputs[0], parts[0].dtype, parts[0].order)
    axis, offset = integer(node, "axis", 0) % len(target.shape), 0
    for place, part in enumerate(parts):
        value = target.buffer.name if place == len(parts) - 1 else ""
        places = (0, offset * target.steps[axis])
        builder.move(part, target, part.steps, target.steps, part.shape, places, value)
        offset += part.shape[axis]


def _listed(builder: NetworkBuilder, node: ir.Node, place: int, default: Sequence[int]) -> list[int]:
    """Whole numbers that an input is."""
    if input_of(node, place) is None:
        return list(default)
    return [int(number) for number in builder.number(node.inputs[place]).reshape(-1)]


def _begins(builder: NetworkBuilder, node: ir.Node, rank: int) -> tuple[list[int], list[int]]:
    """First element and step along each axis of a Slice."""
    starts = _listed(builder, node, 1, ())
    axes = _listed(builder, node, 3, range(len(starts)))
    steps = _listed(builder, node, 4, [1] * len(starts))
    shape = builder.shapes[builder.name(node.inputs[0])]
    first, stride = [0] * rank, [1] * rank
    for start, axis, step in zip(starts, axes, steps, strict=True):
        size = shape[axis]
        begin = start + size if start < 0 else start
        first[axis], stride[axis] = int(np.clip(begin, 0, size - 1 if step < 0 else size)), step
    return first, stride


def strided(builder: NetworkBuilder, node: ir.Node) -> None:
    """Some elements of a value."""
    source = builder.read(node.inputs[0])
    first, stride = _begins(builder, node, len(source.shape))
    target = builder.output(node.outputs[0], source.dtype, source.order)
    offset = sum(begin * step for begin, step in zip(first, source.steps, strict=True))
    steps = [step * by for step, by in zip(source.steps, stride, strict=True)]
    if target.shape == source.shape and set(stride) == {1}:
        same(builder, node)
        return
    builder.move(source, target, steps, target.steps, target.shape, (offset, 0), target.buffer.name)


def split(builder: NetworkBuilder, node: ir.Node) -> None:
    """Parts of a value."""
    source = builder.read(node.inputs[0])
    axis, offset = integer(node, "axis", 0) % len(source.shape), 0
    for value in node.outputs:
        target = builder.output(value, source.dtype, source.order)
        places = (offset * source.steps[axis], 0)
        builder.move(source, target, source.steps, target.steps, target.shape, places, target.buffer.name)
        offset += target.shape[axis]


def pad(builder: NetworkBuilder, node: ir.Node) -> None:
    """A border of one number, or of what lies beside it."""
    source = builder.read(node.inputs[0])
    rank, mode = len(source.shape), text(node, "mode", "constant")
    pads, axes = _listed(builder, node, 1, ()), _listed(builder, node, 3, range(rank))
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[place + len(axes)]
    if min(*before, *after) < 0:
        raise UnsupportedOp("only borders that add something have a kernel")
    if mode == "constant":
        _fill(builder, node, source, before)
        return
    if mode not in ("reflect", "edge", "wrap"):
        raise UnsupportedOp(f"its mode is {mode!r}")
    tensor = builder.plain(source)
    padded = [axis for axis in range(rank) if before[axis] or after[axis]]
    if not padded:
        same(builder, node)
    for axis in padded:
        places = np.pad(np.arange(tensor.shape[axis]), (before[axis], after[axis]), mode=mode)  # type: ignore[call-overload]
        value = str(node.outputs[0].name) if axis == padded[-1] else ""
        tensor = _take(builder, tensor, places, axis, value, str(node.outputs[0].name))


def _fill(builder: NetworkBuilder, node: ir.Node, source: CTensor, before: Sequence[int]) -> None:
    target = builder.output(node.outputs[0], source.dtype, source.order)
    filler = builder.number(node.inputs[2]).reshape(-1) if input_of(node, 2) is not None else np.zeros(1)
    if source.dtype == REAL and float(filler[0]) != 0:
        raise UnsupportedOp("padding of floats has a kernel only with zeros")
    arguments: list[Argument] = [Place(target.buffer), str(int(filler[0])), str(target.buffer.bytes)]
    builder.add(Step("memset", arguments, [], [target.buffer]), node.op_type)
    offset = sum(count * step for count, step in zip(before, target.steps, strict=True))
    builder.move(source, target, source.steps, target.steps, source.shape, (0, offset), target.buffer.name)


def _take(builder: NetworkBuilder, source: CTensor, places: np.ndarray, axis: int, value: str, name: str) -> CTensor:
    shape = (*source.shape[:axis], places.size, *source.shape[axis + 1 :])
    target = builder.new(name, shape, source.dtype)
    inner = prod(source.shape[axis + 1 :]) * np.dtype(source.dtype).itemsize
    if source.shape[axis] > np.iinfo(np.uint16).max:
        raise UnsupportedOp(f"an axis of {source.shape[axis]} elements is longer than 65535")
    index = builder.network.constants.add(places.astype(np.uint16), "places")
    numbers = [index, *map(str, (prod(source.shape[:axis]), source.shape[axis], places.size, inner))]
    step = Step(
        "take",
        [Place(source.buffer), Place(target.buffer), *numbers],
        [source.buffer],
        [target.buffer],
        value,
        target if value else None,
    )
    builder.add(step, "Gather")
    return target


def gather(builder: NetworkBuilder, node: ir.Node) -> None:
    """Elements at places that never change."""
    if builder.is_constant(node.inputs[0]) and not builder.is_constant(node.inputs[1]):
        raise UnsupportedOp("rows of a table at positions that an input gives have no kernel")
    source = builder.plain(builder.read(node.inputs[0]))
    axis = integer(node, "axis", 0) % len(source.shape)
    places = builder.number(node.inputs[1])
    index = np.where(places < 0, places + source.shape[axis], places).reshape(-1)
    name = str(node.outputs[0].name)
    result = _take(builder, source, index, axis, "", name)
    shape = builder.shapes[name]
    builder.place(name, renamed(result, shape=shape, order=plain(len(shape))))


def depth_to_space(builder: NetworkBuilder, node: ir.Node) -> None:
    """Channels become pixels."""
    source = builder.plain(builder.read(node.inputs[0]))
    n, c, h, w = source.shape
    size = integer(node, "blocksize", 1)
    mode = text(node, "mode", "DCR")
    split_up = (n, size, size, c // size**2, h, w) if mode == "DCR" else (n, c // size**2, size, size, h, w)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    view = renamed(source, shape=split_up, order=plain(6))
    target = builder.output(node.outputs[0], source.dtype)
    sizes = tuple(split_up[axis] for axis in perm)
    whole = CTensor(target.buffer, sizes, target.dtype, plain(6))
    steps = [view.steps[axis] for axis in perm]
    builder.move(view, whole, steps, whole.steps, sizes)
    builder.place(target.buffer.name, target)


def resize(builder: NetworkBuilder, node: ir.Node) -> None:
    """Nearest pixels: at places that ONNX Runtime tells."""
    if text(node, "mode", "nearest") != "nearest":
        raise UnsupportedOp("only the nearest pixels have a kernel")
    tensor, name = builder.plain(builder.read(node.inputs[0])), str(node.outputs[0].name)
    proto, constants = standalone(node, builder.number)
    places = np.arange(tensor.size, dtype=np.int32).reshape(tensor.shape)
    whole = compute(builder.lowered.model, [proto], constants, {"x": places}, ["y"])["y"]
    changed = [axis for axis in range(places.ndim) if whole.shape[axis] != places.shape[axis]]
    if not changed:
        same(builder, node)
    for axis in changed:
        corner = tuple(slice(None) if each == axis else slice(0, 1) for each in range(places.ndim))
        index = whole[corner].reshape(-1) // tensor.steps[axis] % tensor.shape[axis]
        tensor = _take(builder, tensor, index, axis, name if axis == changed[-1] else "", name)
