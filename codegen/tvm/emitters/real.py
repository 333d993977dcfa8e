"""Functions and pools that stay in float32."""

import onnx_ir as ir

from ptqc.codegen.tvm.emission import Emission
from ptqc.codegen.tvm.families import Declined, functions, pool
from ptqc.codegen.tvm.layout import Layout
from ptqc.nodes import number
from ptqc.operators import clip_bounds

# Attributes of functions with their defaults.
NUMBERS = {
    "LeakyRelu": (("alpha", 0.01),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}
LARGEST_FLOAT = 3.4028235e38


def unary(emission: Emission, node: ir.Node) -> None:
    """A function of one tensor."""
    numbers = _numbers(node)
    emission.apply(node, lambda x, y: functions.unary(node.op_type, x, y, emission.isa, numbers))


def _numbers(node: ir.Node) -> list[float]:
    if node.op_type == "Clip":
        bounds = clip_bounds(node)
        if bounds is None:
            raise Declined("its bounds are not constant")
        return [min(max(bound, -LARGEST_FLOAT), LARGEST_FLOAT) for bound in bounds]
    if node.op_type == "HardSwish":
        return [1 / 6, 0.5]
    return [number(node, name, default) for name, default in NUMBERS.get(node.op_type, ())]


def binary(emission: Emission, node: ir.Node) -> None:
    """A function of two tensors, one of which may be constant."""
    layout = Layout(emission.shape(node.outputs[0]), "float32")
    names: list[str] = []
    given: list[Layout] = []
    constant = None
    for value in node.inputs:
        if value is not None and value.name in emission.constants:
            constant = (len(names), emission.number(value))
        else:
            names.append(emission.operand(value))
            given.append(emission.layouts[names[-1]])
    kernel = functions.binary(node.op_type, given, layout, emission.isa, constant)
    emission.add(kernel, names, str(node.outputs[0].name), layout)


def mean(emission: Emission, node: ir.Node) -> None:
    """GlobalAveragePool."""
    emission.apply(node, lambda x, y: pool.mean(x, y, emission.isa))
