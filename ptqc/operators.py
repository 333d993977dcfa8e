"""What ptqc knows of each operator: which keep integers, which have an integer kernel, which are layers."""

import numpy as np
import onnx_ir as ir

from ptqc.graph.nodes import constant, scalar, text

# Operators whose kernel moves or selects codes: the output has the scale of the input(s). DepthToSpace and SpaceToDepth
# have none for uint8 before ONNX Runtime 1.20.
THROUGH = frozenset(
    [
        "Clip",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "Resize",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
# Operators that ONNX Runtime computes on codes with an own output scale.
ELEMENTWISE = frozenset(("Add", "Mul"))
UNARY = frozenset(("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"))
LAYERS = frozenset(("Conv", "Gemm", "MatMul"))
# Layers that ONNX Runtime computes on codes even when the output stays float.
FLOAT_OUTPUT = frozenset(("Gemm", "MatMul"))
# Operators that give another output at every run.
RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)


def is_float(value: ir.Value) -> bool:
    """Whether a value is a float32 tensor."""
    return value.dtype == ir.DataType.FLOAT


def clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Lower and upper bound of a Relu or of a Clip with constant bounds."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    if node.op_type != "Clip":
        return None
    bounds = [-float("inf"), float("inf")]
    for index, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        bound = scalar(value)
        if bound is None:
            return None
        bounds[index] = float(bound)
    return bounds[0], bounds[1]


def data_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of a through or element-wise operator that carry activations."""
    if node.op_type in ELEMENTWISE or node.op_type == "Concat":
        return [v for v in node.inputs if v is not None]
    return [v for v in node.inputs[:1] if v is not None]


def keeps_codes(node: ir.Node) -> bool:
    """Whether the node can run on codes with one scale for input and output."""
    if node.op_type not in THROUGH or node.domain or not all(is_float(v) for v in data_inputs(node)):
        return False
    if any(constant(v) is not None for v in data_inputs(node)):
        return False
    match node.op_type:
        case "Clip" | "Relu":
            return clip_bounds(node) is not None
        case "Resize":
            return text(node, "mode", "nearest") == "nearest"
        case "Pad":
            value = constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(1)
            return value is not None and not np.any(value)
        case "MaxPool":
            return len(node.outputs) == 1
    return True


def absorbs(node: ir.Node) -> ir.Node | None:
    """The Relu or Clip(0, …) whose work the saturation of this node's quantized output does, if there is one."""
    if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    consumers = node.outputs[0].consumers()
    if len(consumers) != 1:
        return None
    bounds = clip_bounds(consumers[0])
    return consumers[0] if bounds is not None and bounds[0] == 0.0 and bounds[1] > 0.0 else None


def settled_output(node: ir.Node) -> ir.Value:
    """The value that is quantized for a node's output: behind an absorbed Relu or Clip."""
    absorbed = absorbs(node)
    return node.outputs[0] if absorbed is None else absorbed.outputs[0]
