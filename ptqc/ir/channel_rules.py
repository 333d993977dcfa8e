"""How each operator leads channels from its inputs to its outputs: what may be reordered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.ir.channels import MOST_PLACES, MOVES, Factor, Role, Rule, TieWalk, along, placed
from ptqc.ir.nodes import constant, input_of, integer, integers, required
from ptqc.ir.operators import Trait, named

Numbers = Sequence[np.ndarray] | None


def elementwise(walk: TieWalk, node: ir.Node) -> Numbers:
    """Places that meet are joined; constants get the numbers of what they meet."""
    shape = walk.shape(node.outputs[0])
    operands = [value for value in node.inputs if value is not None]
    sizes = [aligned(walk.shape(value), len(shape)) for value in operands]
    numbers = [None if is_constant(value) else walk.numbers(value) for value in operands]
    known = [x.reshape(aligned(x.shape, len(shape))) for x in numbers if x is not None]
    varying = [axis for axis in range(len(shape)) if any(x.shape[axis] > 1 for x in known)]
    if not varying:
        walk.keep(*(value for value in operands if is_constant(value)))
        return [np.maximum.reduce(known)] if len(known) == 1 else None
    wide = [all(size[axis] > 1 or shape[axis] == 1 for axis in varying) for size in sizes]
    if len(node.outputs) != 1 or not any(wide):
        return None
    joined: np.ndarray | None = None
    for value, own, is_wide in sorted(zip(operands, numbers, wide, strict=True), key=lambda x: x[1] is None):
        if not is_wide:
            continue
        if own is None:
            own = of_constant(walk, value)
        result = own.reshape(aligned(own.shape, len(shape)))
        target = np.broadcast_shapes(result.shape, (1,) * len(shape) if joined is None else joined.shape)
        result = walk.spread(result, target)
        joined = result if joined is None else walk.spread(joined, target)
        walk.sets.join(joined, result)
    assert joined is not None
    for value, size, is_wide in zip(operands, sizes, wide, strict=True):
        if not is_wide:  # one number for several places: it and they stay where it differs
            walk.keep(value)
            walk.trace_axes(joined, [axis for axis in varying if size[axis] > 1])
    return [walk.narrowed(joined)]


def pointwise(walk: TieWalk, node: ir.Node) -> Numbers:
    """Each element, or each plane of pixels, for itself, by operators whose other inputs are parameters."""
    numbers = walk.numbers(node.inputs[0])
    walk.keep(*node.inputs[1:])
    return [numbers]


def of_planes(walk: TieWalk, node: ir.Node) -> Numbers:
    """Pools and what else keeps channels and changes planes."""
    before, after = (walk.shape(value) for value in (node.inputs[0], node.outputs[0]))
    numbers = walk.numbers(node.inputs[0])
    is_kept = len(node.outputs) == 1 and len(before) == len(after) and before[:2] == after[:2]
    return pointwise(walk, node) if is_kept and set(numbers.shape[2:]) <= {1} else None


def convolved(walk: TieWalk, node: ir.Node) -> Numbers:
    """A convolution: channels of the input within their groups, and those of the output."""
    result = _of_convolution(walk, node)
    return None if result is None else (_depthwise if result.is_depthwise else _in_groups)(walk, node, result)


def within_groups(walk: TieWalk, node: ir.Node) -> Numbers:
    """A convolution whose outputs are independent of its inputs."""
    result = _of_convolution(walk, node)
    return None if result is None else _in_groups(walk, node, result)


@dataclass(frozen=True)
class _Convolution:
    """Sizes of a weight, and the numbers of the channels that are read. rank: of the input."""

    outputs: int
    inputs: int
    groups: int
    read: np.ndarray
    rank: int

    @property
    def is_depthwise(self) -> bool:
        return self.inputs == 1 < self.groups

    @property
    def group_of_output(self) -> np.ndarray:
        return np.repeat(np.arange(self.groups), self.outputs // self.groups)


def _of_convolution(walk: TieWalk, node: ir.Node) -> _Convolution | None:
    weight, shape = constant(node.inputs[1]), walk.shape(node.inputs[0])
    read = along(walk.numbers(node.inputs[0]), 1, shape[1])
    if weight is None or read is None:
        return None
    outputs, inputs = weight.shape[:2]
    return _Convolution(outputs, inputs, integer(node, "group", 1), read, len(shape))


def _depthwise(walk: TieWalk, node: ir.Node, conv: _Convolution) -> Numbers:
    """Channels of the output are those of the input, or several for each."""
    result = np.repeat(conv.read, conv.outputs // conv.groups)
    walk.sets.trace_taken(result, conv.read, conv.group_of_output)
    walk.take(required(node.inputs[1]), Role((conv.outputs, -1), (Factor((0,), result),)))
    take_vector(walk, input_of(node, 2), result)
    return [placed(result, 1, conv.rank)]


def _in_groups(walk: TieWalk, node: ir.Node, conv: _Convolution) -> Numbers:
    result = walk.sets.fresh(conv.outputs)
    walk.sets.trace(result, conv.group_of_output)
    walk.sets.trace(conv.read, np.repeat(np.arange(conv.groups), conv.inputs))
    view = conv.groups, conv.outputs // conv.groups, conv.inputs, -1
    walk.take(required(node.inputs[1]), Role(view, (Factor((0, 1), result), Factor((0, 2), conv.read, -1))))
    take_vector(walk, input_of(node, 2), result)
    return [placed(result, 1, conv.rank)]


def product(walk: TieWalk, node: ir.Node) -> Numbers:
    """MatMul by a constant matrix, or of two activations."""
    return by_matrix(walk, node) if any(map(is_constant, node.inputs)) else _of_two(walk, node)


def gemm(walk: TieWalk, node: ir.Node) -> Numbers:
    """Gemm by constants."""
    are_constant = all(value is None or is_constant(value) for value in node.inputs[1:])
    if integer(node, "transA", 0) or not are_constant:
        return None
    return by_matrix(walk, node)


def by_matrix(walk: TieWalk, node: ir.Node) -> Numbers:
    """A product whose second factor is a constant matrix."""
    shape, weight = walk.shape(node.inputs[0]), constant(node.inputs[1])
    read = along(walk.numbers(node.inputs[0]), -1, shape[-1])
    if weight is None or weight.ndim != 2 or read is None:
        return None
    rows, columns = (1, 0) if integer(node, "transB", 0) else (0, 1)
    result = walk.sets.fresh(weight.shape[columns])
    factors = Factor((rows,), read, -1), Factor((columns,), result)
    walk.take(required(node.inputs[1]), Role(weight.shape, factors))
    take_vector(walk, input_of(node, 2), result)
    return [placed(result, -1, len(walk.shape(node.outputs[0])))]


def _of_two(walk: TieWalk, node: ir.Node) -> Numbers:
    """A product of activations (…, m, k) and (…, k, n): what is summed over is joined, what is not is led on.

    Of each it is followed along one of its last two axes, beside those before them, which keep their order.
    """
    rank = len(walk.shape(node.outputs[0]))
    left, right = (walk.numbers(value) for value in node.inputs)
    if left.ndim != rank or right.ndim != rank or rank < 2:
        return None
    rows, inner = left.shape[-2] > 1, left.shape[-1] > 1
    depth, columns = right.shape[-2] > 1, right.shape[-1] > 1
    if (rows and inner) or (depth and columns) or inner != depth or (rows and columns):
        return None
    for numbers, is_led in ((left, rows or inner), (right, columns or depth)):
        if not is_led:
            walk.sets.fix(numbers)
    target = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (walk.spread(x, (*target, *x.shape[-2:])) for x in (left, right))
    for numbers in (left, right):
        walk.trace_axes(numbers, range(rank - 2))
    if inner:
        walk.sets.join(left, right.swapaxes(-1, -2))
    if rows or columns:
        return [walk.narrowed(left if rows else right)]
    return [np.zeros((1,) * rank, np.int64)]


def normalized(walk: TieWalk, node: ir.Node) -> Numbers:
    """A normalization over the last axes, in whatever order they are."""
    numbers = walk.numbers(node.inputs[0])
    axis = integer(node, "axis", -1) % numbers.ndim
    if any(value is not None and value.uses() for value in node.outputs[1:]):
        return None
    walk.trace_axes(numbers, range(axis))
    for value in node.inputs[1:]:
        if value is not None:
            _join_constant(walk, value, numbers)
    return [numbers]


def by_channel(walk: TieWalk, node: ir.Node) -> Numbers:
    """A normalization of each channel for itself, with constants for each."""
    shape = walk.shape(node.inputs[0])
    numbers = along(walk.numbers(node.inputs[0]), 1, shape[1])
    if numbers is None or not all(map(is_constant, node.inputs[1:])) or len(node.outputs) != 1:
        return None
    for value in node.inputs[1:]:
        take_vector(walk, value, numbers)
    return [placed(numbers, 1, len(shape))]


def reduced(walk: TieWalk, node: ir.Node) -> Numbers:
    """One value of all along some axes, in whatever order they are."""
    numbers, operand = walk.numbers(node.inputs[0]), constant(input_of(node, 1))
    axes = integers(node, "axes", []) if operand is None else operand.tolist()
    if (input_of(node, 1) is not None and operand is None) or (not axes and integer(node, "noop_with_empty_axes", 0)):
        return None
    over = {axis % numbers.ndim for axis in axes} or set(range(numbers.ndim))
    remaining = [axis for axis in range(numbers.ndim) if axis not in over]
    result = numbers
    if any(numbers.shape[axis] > 1 for axis in over):
        walk.trace_axes(numbers, remaining)
        result = np.zeros((1,) * numbers.ndim, np.int64)
    return [result if integer(node, "keepdims", 1) else result.reshape([result.shape[axis] for axis in remaining])]


def shared_out(walk: TieWalk, node: ir.Node) -> Numbers:
    """Softmax: each value by all along an axis, in whatever order they are."""
    numbers = walk.numbers(node.inputs[0])
    axis = integer(node, "axis", -1) % numbers.ndim
    walk.trace_axes(numbers, [other for other in range(numbers.ndim) if other != axis])
    return [numbers]


def take_vector(walk: TieWalk, value: ir.Value | None, numbers: np.ndarray) -> None:
    """Let a constant with one value for each channel, or one for all, take part."""
    if value is None:
        return
    shape = walk.shape(value)
    if int(np.prod(shape)) == len(numbers):
        walk.take(value, Role((-1,), (Factor((0,), numbers),)))
    else:
        walk.keep(value)
        walk.sets.fix(numbers)


def of_constant(walk: TieWalk, value: ir.Value) -> np.ndarray:
    """Numbers of the places of a constant that is added or multiplied."""
    shape = walk.shape(value)
    if int(np.prod(shape)) > MOST_PLACES:
        walk.keep(value)
        return np.zeros((1,) * len(shape), np.int64)
    numbers = walk.sets.fresh(*shape)
    walk.take(value, Role(shape, (Factor(tuple(range(len(shape))), numbers.ravel()),)))
    return numbers


def _join_constant(walk: TieWalk, value: ir.Value, numbers: np.ndarray) -> None:
    """A constant that broadcasts to a tensor with these numbers."""
    if not is_constant(value):
        walk.keep(value)
        walk.sets.fix(numbers)
        return
    own = of_constant(walk, value)
    own = own.reshape(aligned(own.shape, numbers.ndim))
    target = np.broadcast_shapes(own.shape, numbers.shape)
    walk.sets.join(walk.spread(own, target), walk.spread(numbers, target))


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is known before any run."""
    return constant(value) is not None


def aligned(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """A shape of so many axes, with further ones of size 1 in front, as ONNX broadcasts."""
    return (*(1,) * (rank - len(shape)), *shape)


POOLS = named(Trait.PLANES) - MOVES.keys()
ORDERS: Mapping[str, Rule] = {
    **MOVES,
    **dict.fromkeys(named(Trait.POINTWISE), pointwise),
    **dict.fromkeys(named(Trait.AFFINE) | {"PRelu", "Where", "Min", "Max", "Sum", "Mean", "Pow"}, elementwise),
    **dict.fromkeys(POOLS, of_planes),
    **dict.fromkeys(named(Trait.REDUCES), reduced),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), by_channel),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), normalized),
    "Softmax": shared_out,
    "LogSoftmax": shared_out,
    "Conv": convolved,
    "Gemm": gemm,
    "MatMul": product,
}
