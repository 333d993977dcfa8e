"""Raise models below opset 18 to 18, the first with the bit operators that packed weights need.

Between 13 and 18 the same attributes mean the same, except where an adapter below says otherwise; what only gained
types, or attributes whose default is the old behaviour, needs none. (onnx.version_converter rebuilds the whole model
and leaves out subgraphs and metadata.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.notes import Note
from ptqc.passes.base import Effect, RewriteContext
from ptqc.passes.graph_tools import add_constant

TARGET = 18
# IR version 8 is the one that opset 18 came with; versions below 4 list initializers as inputs.
MIN_IR_VERSION = 8


@dataclass(frozen=True)
class ConvertOpset:
    """Convert opset 13 to 17 into 18; higher ones stay."""

    name: ClassVar[str] = "convert-opset"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """Adapt the operators whose signature changed, in subgraphs as well."""
        version = model.graph.opset_imports[""]
        if version >= TARGET:
            return []
        for node in list(model.graph.all_nodes()):
            adapter = None if node.domain else ADAPTERS.get(node.op_type)
            if adapter is not None:
                adapter(model, node, version)
        model.graph.opset_imports[""] = TARGET
        model.ir_version = max(model.ir_version, MIN_IR_VERSION)
        return [Note(self.name, "", f"opset {version} converted to {TARGET}")]


def _axes_to_input(model: ir.Model, node: ir.Node, version: int) -> None:  # noqa: ARG001
    axes = node.attributes.pop("axes", None)
    if axes is not None:
        node.resize_inputs(2)
        node.replace_input_with(1, add_constant(model, np.array(axes.as_ints(), np.int64), f"{_name(node)}_axes"))


def _count_outputs(model: ir.Model, node: ir.Node, version: int) -> None:  # noqa: ARG001
    if len(node.inputs) < 2 or node.inputs[1] is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


def _old_roi_default(model: ir.Model, node: ir.Node, version: int) -> None:  # noqa: ARG001
    # Opset 16 introduced the attribute, with a default that is not what opset 10 computed.
    if version < 16:
        node.attributes["coordinate_transformation_mode"] = ir.AttrString(
            "coordinate_transformation_mode", "output_half_pixel"
        )


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or node.op_type


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")  # ReduceSum changed at 13

ADAPTERS: dict[str, Callable[[ir.Model, ir.Node, int], None]] = {
    **{f"Reduce{kind}": _axes_to_input for kind in REDUCTIONS},
    "Split": _count_outputs,
    "RoiAlign": _old_roi_default,
}
