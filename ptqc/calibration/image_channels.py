"""How many channels an image input has whose shape leaves them open, by the convolution that reads it.

Exporters of vision transformers name every axis of the input, that of the channels too.
"""

import onnx_ir as ir

from ptqc.ir.nodes import integer, required, static
from ptqc.ir.operators import Trait, named

IMAGE_AXES = 4
CHANNELS = 1  # the axis of the channels, which convolutions want in front of height and width
ELEMENTWISE = named(Trait.AFFINE, Trait.COPIES)


def channels_of(value: ir.Value) -> int | None:
    """Channels that a convolution wants of a value with 4 axes, as it is or normalized; None where none reads it."""
    for node in value.consumers():
        if node.domain or node.graph is not value.graph:
            continue
        if node.op_type == "Conv" and node.inputs[0] is value:
            weight = static(node.inputs[1])
            if weight is not None and len(weight) == IMAGE_AXES:
                return weight[CHANNELS] * integer(node, "group", 1)
        elif node.op_type in ELEMENTWISE and (found := channels_of(required(node.outputs[0]))) is not None:
            return found
    return None
