"""Reshapes that only flatten to (batch, rest) written as Flatten, so that the batch stays symbolic."""

import math
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ptqc.ir.nodes import (
    constant,
    infer_shapes,
    input_of,
    integer,
    nodes_of,
    producer,
    rank,
    remove_dead,
    replace_node,
    same_size,
    scalar,
    static,
)
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class Flatten:
    """Reshape to (N, -1), and Squeeze of the positions after a global pool, become Flatten(axis=1)."""

    name: ClassVar[str] = "flatten"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each node that became Flatten; other Reshapes are other functions, so they get none."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "Reshape", "Squeeze"):
            if _flattens(node) if node.op_type == "Reshape" else _squeezes_positions(node):
                replace_node(node, "Flatten", node.inputs[:1], {"axis": 1})
                notes.append(Note(self.name, node.outputs[0].name or "", f"{node.op_type} is now Flatten"))
        if notes:
            remove_dead(model)
            infer_shapes(model)
        return probed.rewritten(notes)


def _flattens(node: ir.Node) -> bool:
    """Whether the target is two-dimensional and keeps the first axis."""
    source, target = node.inputs[0], node.inputs[1]
    if source is None or (rank(source) or 0) < 2 or integer(node, "allowzero", 0):
        return False
    sizes = constant(target)
    if sizes is not None:
        return _keeps_first_axis(source, [int(size) for size in sizes])
    concat = producer(target, "Concat")
    if concat is None or len(concat.inputs) != 2:
        return False
    rest = scalar(concat.inputs[1])
    return rest is not None and _is_rest(source, int(rest)) and _is_batch(concat.inputs[0], source)


def _keeps_first_axis(source: ir.Value, sizes: list[int]) -> bool:
    if len(sizes) != 2:
        return False
    batch, rest = sizes
    if batch == -1:
        return rest > 0 and _is_rest(source, rest)
    return _is_rest(source, rest) and (batch == 0 or static(source, slice(0, 1)) == (batch,))


def _is_rest(source: ir.Value, size: int) -> bool:
    """Whether the size stands for all axes but the first."""
    sizes = static(source, slice(1, None))
    return size == -1 or (sizes is not None and math.prod(sizes) == size)


def _is_batch(value: ir.Value | None, source: ir.Value) -> bool:
    """Whether the value is the one-element vector with the source's first size."""
    unsqueeze = producer(value, "Unsqueeze", "Reshape")
    if unsqueeze is None:
        return _is_first_size(value, source, one_element=True)
    return _is_first_size(unsqueeze.inputs[0], source, one_element=False)


def _is_first_size(value: ir.Value | None, source: ir.Value, *, one_element: bool) -> bool:
    gather, shape = producer(value, "Gather"), producer(value, "Shape")
    if gather is not None:
        index = constant(gather.inputs[1])
        if index is None or index.ndim != int(one_element) or scalar(gather.inputs[1]) != 0:
            return False
        shape = producer(gather.inputs[0], "Shape")
        return shape is not None and integer(shape, "start", 0) == 0 and _same_batch(shape.inputs[0], source)
    if shape is None or integer(shape, "start", 0) != 0 or integer(shape, "end", 0) != 1:
        return False
    return _same_batch(shape.inputs[0], source)


def _same_batch(other: ir.Value | None, source: ir.Value) -> bool:
    if other is source:
        return True
    if other is None or other.shape is None or source.shape is None or not len(other.shape):
        return False
    return same_size(other.shape[0], source.shape[0])


def _squeezes_positions(node: ir.Node) -> bool:
    source, axes = node.inputs[0], constant(input_of(node, 1))
    axis_count = rank(source)
    if axes is None or axis_count is None or axis_count < 3:
        return False
    return sorted(axis % axis_count for axis in axes.tolist()) == list(range(2, axis_count))
