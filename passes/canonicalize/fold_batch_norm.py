"""Batch normalization folded into the layer before it, or after it, or made a depthwise 1x1 convolution.

y = a * x + c per channel, with a = scale / sqrt(variance + epsilon) and c = bias - a * mean. BatchNormalization has no
integer kernel in ONNX Runtime; a convolution has. Vectors of features are multiplied and added to instead: folded into
the next matrix, each would need a range of its own, which codes of a whole tensor do not have.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import (
    add_constant,
    bypass,
    constant,
    input_of,
    insert_before,
    integer,
    integers,
    nodes_of,
    number,
    only_consumer,
    producer,
    rank,
    replace_node,
    text,
)
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools import LAYERS, channels_of, layer_problem, scale_inputs, scale_outputs

Affine = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class FoldBatchNorm:
    """Fold each BatchNormalization where that is exact; the others become depthwise convolutions, or Mul and Add."""

    name: ClassVar[str] = "fold-batch-norm"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each batch normalization."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "BatchNormalization"):
            subject = node.outputs[0].name or ""
            affine = _affine(node)
            if affine is None:
                reason = "its parameters are not constant, or it is in training mode"
                notes.append(Note(self.name, subject, reason, Level.SKIPPED))
            else:
                message, level = _fold(model, node, affine)
                notes.append(Note(self.name, subject, message, level))
        return probed.rewritten(notes)


def _affine(node: ir.Node) -> Affine | None:
    """(a, c) in float64."""
    parameters = [constant(value) for value in node.inputs[1:5]]
    if integer(node, "training_mode", 0) or any(output.uses() for output in node.outputs[1:]):
        return None
    if any(array is None for array in parameters):
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in parameters)
    factor = scale / np.sqrt(variance + number(node, "epsilon", 1e-5))
    return factor, bias - factor * mean


def _fold(model: ir.Model, node: ir.Node, affine: Affine) -> tuple[str, Level]:
    before = _layer_before(node, affine)
    if before is not None and bypass(node, before.outputs[0]):
        scale_outputs(model, before, *affine)
        return f"folded into the {before.op_type} before it", Level.INFO
    after = _conv_after(node, affine)
    source = node.inputs[0]
    if after is not None and source is not None and bypass(node, source):
        scale_inputs(model, after, *affine)
        return "folded into the Conv after it", Level.INFO
    axis_count = rank(source) or rank(node.outputs[0])
    if axis_count is None or axis_count < 2:
        described = "not known" if axis_count is None else f"{axis_count}"
        return f"stays: channels need an input of rank 2 or more, and its rank is {described}", Level.SKIPPED
    if axis_count == 2:
        _as_product_and_sum(model, node, affine)
        return "no layer to fold into: now Mul and Add", Level.INFO
    _as_depthwise(model, node, affine, axis_count)
    return "no layer to fold into: now a depthwise 1x1 Conv", Level.INFO


def _layer_before(node: ir.Node, affine: Affine) -> ir.Node | None:
    layer = producer(node.inputs[0], *LAYERS)
    if layer is None or layer.graph is not node.graph or only_consumer(layer.outputs[0]) is not node:
        return None
    return layer if layer_problem(layer) is None and channels_of(layer) == affine[0].size else None


def _conv_after(node: ir.Node, affine: Affine) -> ir.Node | None:
    conv = only_consumer(node.outputs[0])
    if conv is None or conv.op_type != "Conv" or conv.domain != "" or conv.graph is not node.graph:
        return None
    if conv.inputs[0] is not node.outputs[0] or layer_problem(conv) is not None:
        return None
    weight = constant(conv.inputs[1])
    if weight is None or weight.shape[1] * integer(conv, "group", 1) != affine[0].size:
        return None
    pads_nothing = not any(integers(conv, "pads", ())) and text(conv, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return conv if pads_nothing or not affine[1].any() else None


def _as_product_and_sum(model: ir.Model, node: ir.Node, affine: Affine) -> None:
    name, output = node.outputs[0].name, node.outputs[0]
    factor, shift = (
        add_constant(model, array.astype(np.float32), f"{name}_{role}")
        for array, role in zip(affine, ("factor", "shift"), strict=True)
    )
    product = insert_before(node, "Mul", [input_of(node, 0), factor], name=f"{name}_scaled")
    product.type, product.shape = output.type, output.shape
    replace_node(node, "Add", [product, shift])


def _as_depthwise(model: ir.Model, node: ir.Node, affine: Affine, axis_count: int) -> None:
    scale, shift = (array.astype(np.float32) for array in affine)
    name = node.outputs[0].name
    ones = [1] * (axis_count - 2)
    weight = add_constant(model, scale.reshape(-1, 1, *ones), f"{name}_weight")
    bias = add_constant(model, shift, f"{name}_bias")
    attributes = {"group": scale.size, "kernel_shape": ones}
    replace_node(node, "Conv", [input_of(node, 0), weight, bias], attributes)
