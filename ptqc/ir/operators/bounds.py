"""The bounds of a Relu or Clip."""

import onnx_ir as ir

from ptqc.ir.nodes import scalar


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
