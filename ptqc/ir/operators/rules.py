"""What a node does to codes, by the specification of its operator."""

import onnx_ir as ir

from ptqc.ir.nodes import constant
from ptqc.ir.operators.base import Trait, clip_bounds
from ptqc.ir.operators.registry import known


def is_float(value: ir.Value) -> bool:
    """Whether a value is a float32 tensor."""
    return value.dtype == ir.DataType.FLOAT


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node that carry activations."""
    result = known(node)
    if result is not None and result.operands is None:
        return [value for value in node.inputs if value is not None]
    places = result.operands if result is not None and result.operands is not None else (0,)
    return [value for place in places if place < len(node.inputs) and (value := node.inputs[place]) is not None]


def keeps_codes(node: ir.Node) -> bool:
    """Whether the node can run on codes with one scale for input and output."""
    result = known(node)
    if result is None or result.moves is None or not all(is_float(value) for value in data_inputs(node)):
        return False
    return not any(constant(value) is not None for value in data_inputs(node)) and result.moves(node)


def has_own_scale(node: ir.Node) -> bool:
    """Whether a node, which is no layer, has a kernel on codes whose output has a scale of its own."""
    result = known(node)
    if result is None or not result.kernels or Trait.LAYER in result.traits:
        return False
    several = result.operands is None
    return not (several and any(constant(value) is not None for value in data_inputs(node)))


def absorbs(node: ir.Node) -> ir.Node | None:
    """The Relu or Clip(0, …) whose work the saturation of this node's quantized output does, if there is one."""
    if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    consumers = node.outputs[0].consumers()
    if len(consumers) != 1:
        return None
    bounds = clip_bounds(consumers[0])
    return consumers[0] if bounds is not None and bounds[0] == 0.0 and bounds[1] > 0.0 else None


def quantized_output(node: ir.Node) -> ir.Value:
    """The value that is quantized for a node's output: behind an absorbed Relu or Clip."""
    absorbed = absorbs(node)
    return node.outputs[0] if absorbed is None else absorbed.outputs[0]
