"""Multiplications and additions of per-channel constants right after a layer folded into its weight and bias."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import bypass, constant, nodes_of, only_consumer, producer
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools import channels_of, layer_problem, scale_outputs


@dataclass(frozen=True)
class FoldAffine:
    """Fold Mul, Div, Add and Sub by constants into the Conv or ConvTranspose before them."""

    name: ClassVar[str] = "fold-affine"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each operator by a constant that follows a convolution directly."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "Mul", "Div", "Add", "Sub"):
            result = _layer_and_operand(node)
            if result is None:
                continue
            layer, operand = result
            subject = node.outputs[0].name or ""
            reason = _problem(layer, node, operand)
            if reason is None:
                affine = _affine(node.op_type, _per_channel(operand, layer))
                bypass(node, layer.outputs[0])
                scale_outputs(model, layer, *affine)
                notes.append(Note(self.name, subject, f"{node.op_type} folded into the {layer.op_type} before it"))
            else:
                notes.append(Note(self.name, subject, f"{node.op_type} stays: {reason}", Level.SKIPPED))
        return probed.rewritten(notes)


def _layer_and_operand(node: ir.Node) -> tuple[ir.Node, np.ndarray] | None:
    """The convolution that gives the left operand and the constant on the right (either way for Add and Mul)."""
    orders = [(0, 1), (1, 0)] if node.op_type in ("Add", "Mul") else [(0, 1)]
    for left, right in orders:
        layer, operand = producer(node.inputs[left], "Conv", "ConvTranspose"), constant(node.inputs[right])
        if layer is not None and operand is not None and layer.graph is node.graph:
            return layer, operand
    return None


def _problem(layer: ir.Node, node: ir.Node, operand: np.ndarray) -> str | None:
    if only_consumer(layer.outputs[0]) is not node:
        return "the layer's output has other users"
    problem = layer_problem(layer)
    if problem is not None:
        return problem
    axis_count = len(layer.inputs[1].shape or ())  # type: ignore[union-attr]
    shape = (1,) * (axis_count - operand.ndim) + operand.shape
    if len(shape) != axis_count or shape not in ((1,) * axis_count, (1, channels_of(layer), *[1] * (axis_count - 2))):
        return f"its constant of shape {list(operand.shape)} is not one value per channel"
    if not np.isfinite(operand).all() or (node.op_type == "Div" and not operand.all()):
        return "its constant holds values that are not finite"
    return None


def _per_channel(operand: np.ndarray, layer: ir.Node) -> np.ndarray:
    return np.broadcast_to(operand.astype(np.float64).reshape(-1), (channels_of(layer),))


def _affine(op_type: str, operand: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a, c) such that the operator computes a * y + c."""
    ones, zeros = np.ones_like(operand), np.zeros_like(operand)
    if op_type == "Mul":
        return operand, zeros
    if op_type == "Div":
        return 1 / operand, zeros
    return ones, operand if op_type == "Add" else -operand
