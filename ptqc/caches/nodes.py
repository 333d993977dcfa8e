"""Nodes in the making, as forms of caches ask for them."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import onnx_ir as ir

# ReduceMax has its axes as an input since this opset.
AXES_ARE_AN_INPUT = 18


class NodeDraft(ABC):
    """Takes nodes in their order. opset: of the model that they are for."""

    opset: int

    @abstractmethod
    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The output of a new node."""

    @abstractmethod
    def constant(self, array: np.ndarray, kind: str) -> ir.Value:
        """A new constant; kind: a word for its name."""

    def real(self, value: float | np.ndarray) -> ir.Value:
        """A constant of float32."""
        return self.constant(np.array(value, np.float32), "number")

    def whole(self, *values: int) -> ir.Value:
        """A constant list of int64."""
        return self.constant(np.array(values, np.int64), "whole")

    def one(self, value: int) -> ir.Value:
        """A constant int64 without axes."""
        return self.constant(np.array(value, np.int64), "one")

    def cast(self, x: ir.Value, kind: ir.DataType) -> ir.Value:
        """x as another type."""
        return self.op("Cast", x, to=int(kind))

    def largest(self, x: ir.Value) -> ir.Value:
        """max|x| over the last axis, which stays."""
        sizes = self.op("Abs", x)
        if self.opset >= AXES_ARE_AN_INPUT:
            return self.op("ReduceMax", sizes, self.whole(-1), keepdims=1)
        return self.op("ReduceMax", sizes, axes=[-1], keepdims=1)
