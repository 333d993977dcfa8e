"""Products by constant matrices in the forms that have integer kernels.

The weight of a MatMul loses leading axes of size 1: a stack of one matrix is a matrix, and integer kernels take no
stacks. MatMul plus a constant bias becomes one Gemm, whose kernel adds the bias.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import MATRIX
from ptqc.ir.nodes import (
    add_constant,
    constant,
    infer_shapes,
    insert_before,
    nodes_of,
    only_consumer,
    rank,
    remove_dead,
    replace_node,
)
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class LinearLayers:
    """A stack of one matrix becomes a matrix; MatMul + Add becomes Gemm, which takes inputs of rank 2 only."""

    name: ClassVar[str] = "linear-layers"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each MatMul with a stack of one matrix, and for each with a bias."""
        model = probed.model
        notes = self._unstack(model)
        for node in nodes_of(model, "MatMul"):
            result = _bias(node)
            if result is None:
                continue
            add, bias, value = result
            subject = add.outputs[0].name or ""
            if rank(node.inputs[0]) != 2:
                reason = f"stays MatMul + Add: Gemm needs an input of rank 2, this has {rank(node.inputs[0])}"
                notes.append(Note(self.name, subject, reason, Level.SKIPPED))
                continue
            vector = value if bias.ndim == 1 else add_constant(model, bias.reshape(-1), f"{value.name}_vector")
            replace_node(add, "Gemm", [node.inputs[0], node.inputs[1], vector])
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            notes.append(Note(self.name, subject, "MatMul + Add is now Gemm"))
        return probed.rewritten(notes)

    def _unstack(self, model: ir.Model) -> list[Note]:
        """Multiply by the one matrix of a stack, where the input has as many axes as the stack, or is given them."""
        notes: list[Note] = []
        matrices: dict[ir.Value, ir.Value] = {}
        for node in nodes_of(model, "MatMul"):
            data, stack = node.inputs
            weight, axes = constant(stack), rank(data)
            if data is None or stack is None or weight is None or axes is None or axes < MATRIX:
                continue
            if weight.ndim <= MATRIX or any(size != 1 for size in weight.shape[:-MATRIX]):
                continue
            if stack not in matrices:
                matrices[stack] = add_constant(model, weight.reshape(weight.shape[-MATRIX:]), f"{stack.name}_matrix")
            if axes < weight.ndim:
                added = add_constant(model, np.arange(weight.ndim - axes), f"{node.outputs[0].name}_axes")
                node.replace_input_with(0, insert_before(node, "Unsqueeze", [data, added]))
            node.replace_input_with(1, matrices[stack])
            message = f"multiplies by the one matrix of its weight of {weight.ndim} axes"
            notes.append(Note(self.name, node.outputs[0].name or "", message))
        if notes:
            remove_dead(model)
            infer_shapes(model)
        return notes


def _bias(node: ir.Node) -> tuple[ir.Node, np.ndarray, ir.Value] | None:
    """The Add behind the MatMul, its bias and the bias's value; None unless there is one bias per column."""
    weight = constant(node.inputs[1])
    add = only_consumer(node.outputs[0])
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32 or add is None:
        return None
    if add.op_type != "Add" or add.domain != "" or add.graph is not node.graph:
        return None
    value = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
    bias = constant(value)
    if value is None or bias is None or bias.size != weight.shape[1] or bias.shape[-1:] != (bias.size,):
        return None
    return (add, bias, value) if bias.ndim <= 2 else None
