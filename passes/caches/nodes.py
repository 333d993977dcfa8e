"""Nodes of a model in the making, for what packs and unpacks caches."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.caches.nodes import NodeDraft
from ptqc.graph.editing import add_constant, unique_name
from ptqc.graph.sites import IN_FLOAT


class ModelDraft(NodeDraft):
    """Nodes of a model that are not in it yet, in their order. hint: what their values are named after.

    A mark keeps them off integer kernels: one scale for a whole tensor would undo the scales of its rows.
    """

    def __init__(self, model: ir.Model, hint: str) -> None:
        self.model, self.hint, self.made = model, hint, list[ir.Node]()
        self.opset = model.graph.opset_imports[""]

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        node = ir.node(op_type, inputs, attributes=attributes, metadata_props={IN_FLOAT: "caches"})
        node.outputs[0].name = unique_name(self.model.graph, f"{self.hint}_{op_type.lower()}_{len(self.made)}")
        self.made.append(node)
        return node.outputs[0]

    def constant(self, array: np.ndarray, kind: str) -> ir.Value:
        """A new constant of the model."""
        return add_constant(self.model, array, f"{self.hint}_{kind}")
