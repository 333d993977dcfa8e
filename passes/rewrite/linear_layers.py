"""MatMul by a constant matrix plus a constant bias as one Gemm, the form that has an integer kernel with a bias."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.graph.editing import add_constant, replace_node
from ptqc.graph.nodes import constant, nodes_of, only_consumer, rank
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class LinearLayers:
    """MatMul + Add on inputs of rank 2 becomes Gemm (Gemm takes no other rank)."""

    name: ClassVar[str] = "linear-layers"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """One note for each MatMul with a bias."""
        model = given.model
        notes = []
        for node in nodes_of(model, "MatMul"):
            found = _bias(node)
            if found is None:
                continue
            add, bias, value = found
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
        return given.rewritten(notes)


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
