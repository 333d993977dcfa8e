"""Writing what an operator computes in others: a rule for each, and the pass over all nodes of a domain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.ir.editing import add_constant, infer_shapes, insert_before, remove_dead, take_over
from ptqc.ir.nodes import input_of, required
from ptqc.notes import Level, Note


class Writer:
    """Writes operators in front of a node of a model."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.hint = node.outputs[0].name or node.op_type

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """The output of a new node."""
        return self.ops(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, count: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        made = ir.node(op_type, inputs, attributes=attributes, domain=domain, num_outputs=count)
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, made)
        return made.outputs

    def constant(self, array: np.ndarray, role: str) -> ir.Value:
        """A new initializer named after the node and its role there."""
        return add_constant(self.model, array, f"{self.hint}_{role}")

    def real(self, number: float, role: str) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.array(number, np.float32), role)

    def input(self, index: int = 0) -> ir.Value:
        """An input that the node cannot be without."""
        return required(input_of(self.node, index))

    def optional(self, index: int) -> ir.Value | None:
        """An input of the node, None where it is absent."""
        return input_of(self.node, index)

    def axis(self, axis: int) -> ir.Value:
        """The axes input of a reduction over one axis."""
        return self.constant(np.array([axis], np.int64), "axis")


# Writes in front of a node what stands for its outputs, or says why that cannot be done.
Rule = Callable[[Writer], list[ir.Value] | str]


def write_out(model: ir.Model, step: str, domain: str, rules: Mapping[str, Rule]) -> list[Note]:
    """Replace the nodes of a domain by what the rules of their operators write; one note for each node.

    Operators without a rule stay.
    """
    notes = [_replace(model, node, step, rules) for node in list(model.graph.all_nodes()) if node.domain == domain]
    if notes:
        remove_dead(model)
        common.RemoveUnusedOpsetsPass()(model)
        infer_shapes(model)
    return notes


def _replace(model: ir.Model, node: ir.Node, step: str, rules: Mapping[str, Rule]) -> Note:
    subject = node.outputs[0].name or ""
    rule = rules.get(node.op_type)
    made = "none of ONNX's own computes the same" if rule is None else _written(model, node, rule)
    if isinstance(made, str):
        return Note(step, subject, f"{node.op_type} stays as it is, in float: {made}", Level.SKIPPED)
    for old, new in zip(node.outputs, made, strict=False):
        _stand_for(node, old, new)
    return Note(step, subject, f"{node.op_type} written in other operators")


def _written(model: ir.Model, node: ir.Node, rule: Rule) -> list[ir.Value] | str:
    """What the rule says, once more where it refuses an input whose shape is known since what makes it was written."""
    made = rule(Writer(model, node))
    if isinstance(made, str) and any(value is not None and value.shape is None for value in node.inputs):
        infer_shapes(model)
        made = rule(Writer(model, node))
    return made


def _stand_for(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Let a value stand for one of the node's, with its type and shape."""
    if old.is_graph_output() and (new.producer() is None or new.is_graph_output() or new.uses()):
        new = insert_before(node, "Identity", [new])
    if new.dtype is None or new.shape is None:
        new.type, new.shape = old.type, old.shape
    take_over(old, new)
