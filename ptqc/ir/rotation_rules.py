"""Which channels may be rotated against each other: mixed by an orthogonal matrix that the weights around take back.

What may change places in any order by operators that are linear, and treat all of these channels alike, may be mixed by
any matrix; what is summed up with itself, as in a scalar product or in the power that a norm divides by, by an
orthogonal one. Norms have to have gains of one, and LayerNormalization asks for a rotation that keeps the mean.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ptqc.ir.channel_rules import elementwise, gemm, is_constant, of_constant, pointwise, product
from ptqc.ir.channels import MOVES, Rule, TieWalk, placed
from ptqc.ir.nodes import constant, input_of, integer, integers, required, scalar

Numbers = Sequence[np.ndarray] | None


def multiplied(walk: TieWalk, node: ir.Node) -> Numbers:
    """By the same number for all channels; or a square of which only the sum is read."""
    first, second = sorted(map(required, node.inputs), key=is_constant)
    if first is second:
        return _squared(walk, node)
    return _by_number(walk, node, first, second)


def divided(walk: TieWalk, node: ir.Node) -> Numbers:
    """By the same number for all channels."""
    return _by_number(walk, node, *map(required, node.inputs))


def raised(walk: TieWalk, node: ir.Node) -> Numbers:
    """A square of which only the sum is read."""
    return _squared(walk, node) if scalar(node.inputs[1]) == 2 else None


def _by_number(walk: TieWalk, node: ir.Node, value: ir.Value, factor: ir.Value) -> Numbers:
    array, shape = constant(factor), walk.shape(node.outputs[0])
    numbers = walk.numbers(value)
    if array is not None and walk.shape(value) == shape and array.size and (array == array.flat[0]).all():
        walk.keep(factor)
        return [numbers]
    sizes = walk.shape(factor)
    varying = [axis - numbers.ndim for axis in range(numbers.ndim) if numbers.shape[axis] > 1]
    is_one = all(-axis > len(sizes) or sizes[axis] == 1 for axis in varying)
    return elementwise(walk, node) if array is None and is_one else None


def _squared(walk: TieWalk, node: ir.Node) -> Numbers:
    numbers = walk.numbers(node.inputs[0])
    rank = numbers.ndim
    varying = {axis for axis in range(rank) if numbers.shape[axis] > 1}
    is_summed = all(varying <= _summed_axes(reader, rank) for reader in node.outputs[0].consumers())
    return [np.zeros((1,) * rank, np.int64)] if is_summed and not node.outputs[0].is_graph_output() else None


def _summed_axes(node: ir.Node, rank: int) -> set[int]:
    """Axes that a node takes a mean or a sum along."""
    if node.domain or not node.op_type.startswith(("ReduceMean", "ReduceSum")):
        return set()
    result = constant(input_of(node, 1))
    axes = integers(node, "axes", []) if result is None else result.tolist()
    return {axis % rank for axis in axes}


def normalized(walk: TieWalk, node: ir.Node) -> Numbers:
    """A norm over the last axis, with gains of one."""
    shape, gain = walk.shape(node.inputs[0]), constant(input_of(node, 1))
    numbers = walk.numbers(node.inputs[0])
    is_last = integer(node, "axis", -1) in (-1, len(shape) - 1) and numbers.size == numbers.shape[-1]
    if not is_last or gain is None or (gain != 1).any():
        return None
    walk.keep(node.inputs[1])
    if (bias := input_of(node, 2)) is not None:
        if not is_constant(bias) or walk.shape(bias) != shape[-1:]:
            return None
        walk.sets.join(of_constant(walk, bias), np.broadcast_to(numbers.ravel(), shape[-1:]))
    return [placed(numbers.ravel(), -1, len(shape))]


ROTATIONS: Mapping[str, Rule] = {
    **MOVES,
    "Add": elementwise,
    "Sub": elementwise,
    "Mul": multiplied,
    "Div": divided,
    "Pow": raised,
    "Neg": pointwise,
    "Identity": pointwise,
    "LayerNormalization": normalized,
    "RMSNormalization": normalized,
    "SimplifiedLayerNormalization": normalized,
    "Gemm": gemm,
    "MatMul": product,
}
