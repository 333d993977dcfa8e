"""Operators whose bounds or results follow from the lengths of a call: slices, ranges, constants of any size."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import move, sizes
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of
from ptqc.runtime.lengths import at

# Slices that end here or later take all that there is.
FAR = 2**31 - 1


def strided(builder: ProgramBuilder, node: ir.Node) -> None:
    """Slice of what varies in size, or with bounds that follow from lengths."""
    whole = builder.sizes(node.inputs[0])
    axes, strides = _axes_and_strides(builder, node)
    runs: list[list[int]] = []
    for place, point in enumerate(builder.points):
        starts, ends = (builder.number_at(value, place).tolist() for value in node.inputs[1:3])
        result, first = [at(size, point) for size in whole], [0] * len(whole)
        for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
            first[axis] = slice(start, end, stride).indices(result[axis])[0]
        runs.append(first)
    starting = [builder.fitted(column) for column in zip(*runs, strict=True)]
    step = [1] * len(whole)
    for axis, stride in zip(axes, strides, strict=True):
        step[axis] = stride
    for axis, end in _ends(builder, node, axes):
        builder.limit(whole[axis], end)
    if builder.is_constant(node.inputs[0]):
        y = builder.whole_output(node.outputs[0], builder.dtype(node.outputs[0]))
        for size, begin, stride, count in zip(y.shape, starting, step, whole, strict=True):
            builder.limit(begin + (size - 1) * stride, count - 1)
        kernel = sizes.part(y, builder.number(node.inputs[0]), starting, step)
        builder.add_as(kernel, [], node.outputs[0], y)
        return
    outer = builder.outer(node.inputs[0], node.outputs[0], touched=starting[0] != 0 or step[0] != 1)
    builder.apply(node, lambda x, y: move.strided(x, y, starting[outer:], step[outer:], builder.isa), outer=outer)


def _axes_and_strides(builder: ProgramBuilder, node: ir.Node) -> tuple[list[int], list[int]]:
    """Of a slice, for each of its bounds: the axis, counted from the front, and the step along it."""
    count = builder.number_at(node.inputs[1], 0).size
    axes = builder.number(node.inputs[3]).tolist() if input_of(node, 3) is not None else range(count)
    strides = builder.number(node.inputs[4]).tolist() if input_of(node, 4) is not None else [1] * count
    return [axis % len(builder.sizes(node.inputs[0])) for axis in axes], strides


def _ends(builder: ProgramBuilder, node: ir.Node, axes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Axes that a slice takes all of up to a number which they did not reach: of longer ones it would take a part."""
    whole = builder.sizes(node.inputs[0])
    for value, sign in ((node.inputs[1], -1), (node.inputs[2], 1)):
        if not builder.is_constant(value):
            continue
        for axis, bound in zip(axes, builder.number(value).tolist(), strict=True):
            most = sign * bound
            if 0 < most < FAR and all(at(whole[axis], point) <= most for point in builder.points):
                yield axis, most


def steps(builder: ProgramBuilder, node: ir.Node) -> None:
    """Range of whole numbers that follow from the lengths of a call."""
    first, _, step = (builder.numbers_of(value) for value in node.inputs)
    y = builder.whole_output(node.outputs[0], builder.dtype(node.outputs[0]))
    if not isinstance(step[0], int):
        raise UnsupportedOp("its step varies")
    builder.add_as(sizes.steps(y, first[0], step[0]), [], node.outputs[0], y)


def filled(builder: ProgramBuilder, node: ir.Node) -> None:
    """ConstantOfShape of a shape that follows from the lengths of a call."""
    dtype = builder.dtype(node.outputs[0])
    builder.numbers_of(node.inputs[0])
    operand = node.attributes.get("value")
    value = np.zeros(1, dtype) if operand is None else operand.as_tensor().numpy().astype(dtype)
    y = builder.whole_output(node.outputs[0], dtype)
    builder.add_as(sizes.filled(y, value), [], node.outputs[0], y)
