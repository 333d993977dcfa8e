"""How each operator leads factors of channels from its inputs to its outputs: what may carry k times its values."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.ir.channel_rules import (
    POOLS,
    aligned,
    by_matrix,
    gemm,
    is_constant,
    of_constant,
    of_planes,
    pointwise,
    reduced,
    take_vector,
    within_groups,
)
from ptqc.ir.channels import FIXED, MOVES, Factor, Role, Rule, TieWalk, along, padded, placed
from ptqc.ir.nodes import constant, input_of, integer, required, text
from ptqc.ir.operators import Trait, clip_bounds, known, named

Numbers = Sequence[np.ndarray] | None


def summed(walk: TieWalk, node: ir.Node) -> Numbers:
    """What is added has one factor."""
    rank, result = len(walk.shape(node.outputs[0])), None
    for value in map(required, node.inputs):
        own = of_constant(walk, value) if is_constant(value) else walk.numbers(value)
        own = own.reshape(aligned(own.shape, rank))
        target = own.shape if result is None else np.broadcast_shapes(own.shape, result.shape)
        own, result = (walk.spread(x, target) for x in (own, own if result is None else result))
        walk.sets.join(own, result)
    return None if result is None else [walk.narrowed(result)]


def multiplied(walk: TieWalk, node: ir.Node) -> Numbers:
    """A constant for each channel gives it any factor; of two activations one keeps its own."""
    rank = len(walk.shape(node.outputs[0]))
    first, second = sorted(map(required, node.inputs), key=is_constant)
    if is_constant(second):
        return _by_constant(walk, node, first, second)
    numbers = [walk.numbers(value).reshape(aligned(walk.numbers(value).shape, rank)) for value in (first, second)]
    free = [x for x in numbers if (x != FIXED).any()]
    return [free[0]] if len(free) == 1 else None


def _by_constant(walk: TieWalk, node: ir.Node, value: ir.Value, factor: ir.Value) -> Numbers:
    shape, sizes = walk.shape(node.outputs[0]), aligned(walk.shape(factor), len(walk.shape(node.outputs[0])))
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    numbers = walk.numbers(value)
    if not wide and numbers.ndim == len(shape):
        walk.keep(factor)
        return [numbers]
    if len(wide) != 1 or walk.shape(value) != shape or (read := along(numbers, wide[0], shape[wide[0]])) is None:
        return None
    result = walk.sets.fresh(shape[wide[0]])
    walk.take(factor, Role((-1,), (Factor((0,), result), Factor((0,), read, -1))))
    return [placed(result, wide[0], len(shape))]


def divided(walk: TieWalk, node: ir.Node) -> Numbers:
    """By what keeps its values."""
    walk.keep(node.inputs[1])
    numbers, rank = walk.numbers(node.inputs[0]), len(walk.shape(node.outputs[0]))
    return None if is_constant(node.inputs[0]) else [numbers.reshape(aligned(numbers.shape, rank))]


def clipped(walk: TieWalk, node: ir.Node) -> Numbers:
    """Relu, spelled as a Clip."""
    return pointwise(walk, node) if clip_bounds(node) == (0.0, np.inf) else None


def product(walk: TieWalk, node: ir.Node) -> Numbers:
    """MatMul by a constant matrix; of two activations the columns of the second are led on."""
    if any(map(is_constant, node.inputs)):
        return by_matrix(walk, node)
    right, rank = walk.numbers(node.inputs[1]), len(walk.shape(node.outputs[0]))
    walk.keep(node.inputs[0])
    return [right] if right.ndim == rank > 1 and right.shape[-2] == 1 else None


def normalized(walk: TieWalk, node: ir.Node) -> Numbers:
    """Gains and offsets of the last axis give its channels any factor."""
    shape, constants = walk.shape(node.inputs[0]), [value for value in node.inputs[1:] if value is not None]
    is_last = integer(node, "axis", -1) in (-1, len(shape) - 1)
    if not is_last or not constants or any(walk.shape(value) != shape[-1:] for value in constants):
        return None
    if not all(map(is_constant, constants)):
        return None
    walk.keep(node.inputs[0])
    result = walk.sets.fresh(shape[-1])
    for value in constants:
        take_vector(walk, value, result)
    return [placed(result, -1, len(shape))]


def reduced_otherwise(walk: TieWalk, node: ir.Node) -> Numbers:
    """Means and extremes along axes that channels do not lie along."""
    numbers, axes = walk.numbers(node.inputs[0]), constant(input_of(node, 1))
    is_apart = axes is not None and axes.size > 0 and all(numbers.shape[axis] == 1 for axis in axes.tolist())
    return reduced(walk, node) if is_apart else None


def resized(walk: TieWalk, node: ir.Node) -> Numbers:
    """Means of neighbours, but where values of their own are put outside."""
    is_cut = text(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return None if is_cut else of_planes(walk, node)


def padded_with_zeros(walk: TieWalk, node: ir.Node) -> Numbers:
    """Zero is any multiple of itself."""
    facts = known(node)
    return padded(walk, node) if facts is not None and facts.moves is not None and facts.moves(node) else None


SCALES: Mapping[str, Rule] = {
    **MOVES,
    **dict.fromkeys(named(Trait.HOMOGENEOUS), pointwise),
    **dict.fromkeys(POOLS & named(Trait.HOMOGENEOUS), of_planes),
    "Add": summed,
    "Sub": summed,
    "Sum": summed,
    "Mul": multiplied,
    "Div": divided,
    "Clip": clipped,
    "Pad": padded_with_zeros,
    "Resize": resized,
    "ReduceMax": reduced_otherwise,
    "ReduceMean": reduced_otherwise,
    "ReduceMin": reduced_otherwise,
    "LayerNormalization": normalized,
    "RMSNormalization": normalized,
    "SimplifiedLayerNormalization": normalized,
    "Conv": within_groups,
    "Gemm": gemm,
    "MatMul": product,
}
