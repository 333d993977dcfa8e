"""Folding `a * y + c`, with a and c per channel, into the layer that gives y.

Conv and ConvTranspose have their channels on axis 1 of y, and so has Gemm. With W' = a W and b' = a b + c the layer
gives a * (W x + b) + c at once. Computed in float64, stored in float32.
"""

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import replace_constant
from ptqc.ir.nodes import constant, input_of, integer, number

LAYERS = ("Conv", "ConvTranspose", "Gemm")


def layer_problem(node: ir.Node) -> str | None:
    """Why nothing can be folded into the layer, None if something can."""
    weight, bias = constant(input_of(node, 1)), input_of(node, 2)
    if weight is None:
        return "the layer's weight is not constant"
    if len(node.inputs[1].uses()) > 1:  # type: ignore[union-attr]
        return "the layer's weight is shared with another layer"
    if bias is not None:
        array = constant(bias)
        if array is None:
            return "the layer's bias is not constant"
        if array.size not in (1, channels_of(node)) or array.shape[-1:] not in ((), (array.size,)):
            return "the layer's bias is not one value per channel"
    return None


def channels_of(node: ir.Node) -> int:
    """Channels that the layer gives."""
    weight = constant(node.inputs[1])
    assert weight is not None
    if node.op_type == "Conv":
        return int(weight.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1]) * integer(node, "group", 1)
    return int(weight.shape[0 if integer(node, "transB", 0) else 1])


def scale_outputs(model: ir.Model, node: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let the layer give scale * y + shift instead of y; both hold one value per channel.

    Expects a layer in which `layer_problem` finds nothing.
    """
    weight = constant(node.inputs[1])
    assert weight is not None
    name = node.outputs[0].name or node.op_type
    replace_constant(model, node, 1, _scaled(node, weight, scale), f"{name}_weight")
    bias = constant(input_of(node, 2))
    old = np.zeros(1) if bias is None else bias.astype(np.float64).reshape(-1)
    if node.op_type == "Gemm":
        old = old * number(node, "beta", 1.0)
        node.attributes.pop("beta", None)
    new = np.broadcast_to(old, scale.shape) * scale + shift
    if bias is not None or new.any():
        replace_constant(model, node, 2, new.astype(np.float32), f"{name}_bias")


def _scaled(node: ir.Node, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    wide = weight.astype(np.float64)
    if node.op_type == "Gemm":
        columns = scale[:, None] if integer(node, "transB", 0) else scale[None, :]
        return np.asarray(wide * columns, np.float32)
    if node.op_type == "Conv":
        return np.asarray(wide * scale.reshape(-1, *[1] * (weight.ndim - 1)), np.float32)
    groups = integer(node, "group", 1)
    grouped = wide.reshape(groups, -1, *weight.shape[1:])
    factors = scale.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return np.asarray((grouped * factors).reshape(weight.shape), np.float32)


def scale_inputs(model: ir.Model, node: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let a Conv read x where it read scale * x + shift; exact where it pads nothing or the shift is zero.

    Expects a Conv in which `layer_problem` finds nothing.
    """
    weight = constant(node.inputs[1])
    assert weight is not None
    groups = integer(node, "group", 1)
    wide = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
    tail = (groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    offset = (wide * shift.reshape(tail)).reshape(weight.shape[0], -1).sum(axis=1)
    name = node.outputs[0].name or node.op_type
    scaled = (wide * scale.reshape(tail)).reshape(weight.shape).astype(np.float32)
    replace_constant(model, node, 1, scaled, f"{name}_weight")
    bias = constant(input_of(node, 2))
    if bias is not None or offset.any():
        old = 0.0 if bias is None else bias.astype(np.float64)
        replace_constant(model, node, 2, (old + offset).astype(np.float32), f"{name}_bias")
