"""Means over all positions as GlobalAveragePool, which has an integer kernel where ReduceMean has none."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ptqc.ir.nodes import (
    constant,
    input_of,
    insert_before,
    integer,
    integers,
    nodes_of,
    producer,
    rank,
    replace_node,
    static,
    unique_name,
)
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

POSITIONAL = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
POINTWISE = ("Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "BatchNormalization")


@dataclass(frozen=True)
class GlobalPool:
    """ReduceMean over the spatial axes, and AveragePool over the whole input, become GlobalAveragePool."""

    name: ClassVar[str] = "global-pool"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each mean that became a pool; other means are other functions, so they get none."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "ReduceMean", "AveragePool"):
            subject = node.outputs[0].name or ""
            if node.op_type == "AveragePool" and _covers_input(node):
                replace_node(node, "GlobalAveragePool", node.inputs[:1])
            elif node.op_type == "ReduceMean" and _over_positions(node):
                _replace_mean(model, node)
            else:
                continue
            notes.append(Note(self.name, subject, f"{node.op_type} over all positions is now GlobalAveragePool"))
        return probed.rewritten(notes)


def _covers_input(node: ir.Node) -> bool:
    kernel = integers(node, "kernel_shape", ())
    idle = not any(integers(node, "pads", ())) and "auto_pad" not in node.attributes
    dense = all(step == 1 for step in integers(node, "dilations", ()))
    return idle and dense and static(node.inputs[0], slice(2, None)) == tuple(kernel)


def _over_positions(node: ir.Node) -> bool:
    axes, axis_count = constant(input_of(node, 1)), rank(node.inputs[0])
    if axes is None or axis_count is None or axis_count not in (3, 4, 5):
        return False
    if axis_count == 3 and not _from_convolution(node.inputs[0]):  # [batch, position, feature] is no image of one axis
        return False
    floating = node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT
    return floating and sorted(axis % axis_count for axis in axes.tolist()) == list(range(2, axis_count))


def _from_convolution(value: ir.Value | None) -> bool:
    """Whether the value is what a convolution or pool gives, behind any number of pointwise functions of it alone."""
    while (node := producer(value, *POINTWISE)) is not None:
        value = node.inputs[0]
    return producer(value, *POSITIONAL) is not None


def _replace_mean(model: ir.Model, node: ir.Node) -> None:
    if integer(node, "keepdims", 1):
        replace_node(node, "GlobalAveragePool", node.inputs[:1])
        return
    name = unique_name(model.graph, f"{node.outputs[0].name}_pooled")
    pooled = insert_before(node, "GlobalAveragePool", node.inputs[:1], name=name)
    replace_node(node, "Flatten", [pooled], {"axis": 1})
