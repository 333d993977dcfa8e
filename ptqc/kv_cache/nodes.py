"""Nodes in the making, for what packs and unpacks caches."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import add_constant, unique_name
from ptqc.ir.sites import IN_FLOAT


class NodeDraft:
    """Nodes of a model that are not in it yet, in their order. hint: what their values are named after.

    A mark keeps them off integer kernels: one scale for a whole tensor would undo the scales of its rows.
    """

    def __init__(self, model: ir.Model, hint: str) -> None:
        self.model, self.hint, self.made = model, hint, list[ir.Node]()

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        node = ir.node(op_type, inputs, attributes=attributes, metadata_props={IN_FLOAT: "caches"})
        node.outputs[0].name = unique_name(self.model.graph, f"{self.hint}_{op_type.lower()}_{len(self.made)}")
        self.made.append(node)
        return node.outputs[0]

    def real(self, value: float | np.ndarray) -> ir.Value:
        """A constant of float32."""
        return add_constant(self.model, np.array(value, np.float32), f"{self.hint}_number")

    def whole(self, *values: int) -> ir.Value:
        """A constant list of int64."""
        return add_constant(self.model, np.array(values, np.int64), f"{self.hint}_whole")

    def one(self, value: int) -> ir.Value:
        """A constant int64 without axes."""
        return add_constant(self.model, np.array(value, np.int64), f"{self.hint}_one")

    def cast(self, x: ir.Value, kind: ir.DataType) -> ir.Value:
        """x as another type."""
        return self.op("Cast", x, to=int(kind))

    def largest(self, x: ir.Value) -> ir.Value:
        """max|x| over the last axis, which stays; the axes of ReduceMax are an input since opset 18."""
        sizes = self.op("Abs", x)
        if self.model.graph.opset_imports[""] >= 18:
            return self.op("ReduceMax", sizes, self.whole(-1), keepdims=1)
        return self.op("ReduceMax", sizes, axes=[-1], keepdims=1)
