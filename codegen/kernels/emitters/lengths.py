"""Operators whose bounds or results follow from the lengths of a call: slices, ranges, constants of any size."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.emission import Emission
from ptqc.codegen.kernels.families import move, sizes
from ptqc.codegen.program.built import Declined
from ptqc.graph.nodes import input_of
from ptqc.native.lengths import at

# Slices that end here or later take all that there is.
FAR = 2**31 - 1


def strided(emission: Emission, node: ir.Node) -> None:
    """Slice of what varies in size, or with bounds that follow from lengths."""
    whole = emission.sizes(node.inputs[0])
    axes = emission.number(node.inputs[3]).tolist() if input_of(node, 3) is not None else None
    steps = emission.number(node.inputs[4]).tolist() if input_of(node, 4) is not None else None
    runs: list[list[int]] = []
    for place, point in enumerate(emission.points):
        starts, ends = (emission.number_at(value, place).tolist() for value in node.inputs[1:3])
        found, first = [at(size, point) for size in whole], [0] * len(whole)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis = (axes[index] if axes else index) % len(whole)
            first[axis] = slice(start, end, steps[index] if steps else 1).indices(found[axis])[0]
        runs.append(first)
    starting = [emission.fitted(column) for column in zip(*runs, strict=True)]
    step = [1] * len(whole)
    for place, stride in enumerate(steps or []):
        step[(axes[place] if axes else place) % len(whole)] = stride
    for axis, end in _ends(emission, node, axes):
        emission.limit(whole[axis], end)
    if emission.is_constant(node.inputs[0]):
        y = emission.whole_output(node.outputs[0], emission.dtype(node.outputs[0]))
        for size, begin, stride, count in zip(y.shape, starting, step, whole, strict=True):
            emission.limit(begin + (size - 1) * stride, count - 1)
        kernel = sizes.part(y, emission.number(node.inputs[0]), starting, step)
        emission.add_as(kernel, [], node.outputs[0], y)
        return
    outer = emission.outer(node.inputs[0], node.outputs[0], touched=starting[0] != 0 or step[0] != 1)
    emission.apply(node, lambda x, y: move.strided(x, y, starting[outer:], step[outer:], emission.isa), outer=outer)


def _ends(emission: Emission, node: ir.Node, axes: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Axes that a slice takes all of up to a number which they did not reach: of longer ones it would take a part."""
    whole = emission.sizes(node.inputs[0])
    for value, sign in ((node.inputs[1], -1), (node.inputs[2], 1)):
        if not emission.is_constant(value):
            continue
        for place, bound in enumerate(emission.number(value).tolist()):
            axis, most = (axes[place] if axes else place) % len(whole), sign * bound
            if 0 < most < FAR and all(at(whole[axis], point) <= most for point in emission.points):
                yield axis, most


def steps(emission: Emission, node: ir.Node) -> None:
    """Range of whole numbers that follow from the lengths of a call."""
    first, _, step = (emission.numbers_of(value) for value in node.inputs)
    y = emission.whole_output(node.outputs[0], emission.dtype(node.outputs[0]))
    if not isinstance(step[0], int):
        raise Declined("its step varies")
    emission.add_as(sizes.steps(y, first[0], step[0]), [], node.outputs[0], y)


def filled(emission: Emission, node: ir.Node) -> None:
    """ConstantOfShape of a shape that follows from the lengths of a call."""
    dtype = emission.dtype(node.outputs[0])
    emission.numbers_of(node.inputs[0])
    given = node.attributes.get("value")
    value = np.zeros(1, dtype) if given is None else given.as_tensor().numpy().astype(dtype)
    y = emission.whole_output(node.outputs[0], dtype)
    emission.add_as(sizes.filled(y, value), [], node.outputs[0], y)
