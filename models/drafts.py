"""A graph in the making, node by node: what the recipes of decoders share."""

from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper


@dataclass(kw_only=True)
class Nodes:
    """The nodes so far, in order."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node; the name of its output."""
        output = output or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output
