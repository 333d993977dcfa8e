"""From the lowered graph to a network of C: each node goes to its rule, or is named with the reason."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.builder import NetworkBuilder, rounding_of
from ptqc.codegen.c.network import NetworkCalls, Shape
from ptqc.codegen.c.rules import codes, layers, movement, real, recurrent
from ptqc.codegen.c.streaming import StreamBuilder
from ptqc.codegen.c.timeline import timeline
from ptqc.codegen.program.batching import Seen
from ptqc.codegen.program.folding import fold
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.errors import NoKernel
from ptqc.ir import reference
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import output_name
from ptqc.ir.operators.base import LoweredStep, codes_of, has_float_output

NAME = "c"
ON_CODES: Mapping[str, Callable[[NetworkBuilder, LoweredStep], None]] = {
    "Conv": layers.conv,
    "Gemm": layers.product,
    "MatMul": layers.product,
    "Add": codes.add,
    "Mul": codes.mul,
    "GlobalAveragePool": codes.mean,
}
POINTWISE = (
    "Abs Clip Elu Erf Exp Gelu HardSigmoid HardSwish LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid Softplus Softsign "
    "Sqrt Tanh"
)
BETWEEN_CODES: Mapping[str, Callable[[NetworkBuilder, ir.Node, ir.Node], None]] = {
    **dict.fromkeys(POINTWISE.split(), codes.look_up),
    "AveragePool": codes.average,
    "Softmax": codes.softmax,
}
OPERATORS: Mapping[str, Callable[[NetworkBuilder, ir.Node], None]] = {
    "QuantizeLinear": codes.quantize,
    "MaxPool": codes.largest,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), movement.reshape),
    **dict.fromkeys(("Identity", "Dropout"), movement.same),
    "Transpose": movement.transpose,
    "Concat": movement.concat,
    "Slice": movement.strided,
    "Split": movement.split,
    "Pad": movement.pad,
    "Gather": movement.gather,
    "DepthToSpace": movement.depth_to_space,
    "Resize": movement.resize,
    **dict.fromkeys(("Relu", "Clip"), real.limit),
    **dict.fromkeys((*real.UNARY, *real.SHAPED), real.unary),
    "Softmax": real.softmax,
    "Pow": real.power,
    **dict.fromkeys(real.BINARY, real.binary),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "GlobalAveragePool"), real.average_along),
    "Conv": real.conv,
    **dict.fromkeys(("Gemm", "MatMul"), real.product),
    **dict.fromkeys(recurrent.GATES, recurrent.recurrent),
}
# How a program does without operators that have no kernel.
WAYS_OUT = {
    "ArgMax": "export the model without it, and take the largest output in the program",
    "TopK": "export the model without it, and take the largest outputs in the program",
    "BatchNormalization": "export the model in evaluation mode, with constant statistics",
    **dict.fromkeys(("If", "Loop", "Scan"), "export one step, with the state as an input and an output"),
}


def not_known(op_type: str) -> str:
    """Why an operator is refused, and what helps."""
    way_out = WAYS_OUT.get(op_type)
    return "the operator is not known to it" + (f": {way_out}" if way_out else "")


def network_of(lowered: Lowered, seen: Seen, axis: int | None = None, frames: int | None = None) -> NetworkCalls:
    """The calls of a lowered graph. seen: of every value in one run.

    axis: of time, where a call takes new frames: so many, or as few as it can. Raises NoKernel naming a node without a
    rule, and TargetError where the network cannot take frames.
    """
    shapes, constants = shapes_and_constants(lowered.model, seen)
    builder = NetworkBuilder(lowered, shapes, seen.dtypes, constants)
    if axis is not None:
        builder = StreamBuilder(
            lowered, shapes, seen.dtypes, constants, *timeline(lowered, shapes, constants, axis, frames)
        )
    for value in lowered.model.graph.inputs:
        if str(value.name) not in constants:
            with _refusing(f"cannot take the input {value.name}"):
                builder.take_input(value)
    steps = {step.node: step for step in reference.steps(lowered) if step.node.op_type in ON_CODES}
    done: set[ir.Node] = set()
    for node in lowered.model.graph:
        if node in done or all(str(value.name) in builder.values for value in node.outputs):
            continue
        with _refusing(f"has no kernel for {node.op_type} {output_name(node)}"), builder.reading(node):
            if not builder.passes(node):
                done |= _emit(builder, node, steps.get(node))
    for value in lowered.model.graph.outputs:
        with _refusing(f"cannot give the output {value.name}"):
            builder.give_output(value, str(value.name))
    return builder.network


def shapes_and_constants(model: ir.Model, seen: Seen) -> tuple[dict[str, Shape], dict[str, np.ndarray]]:
    """Shapes of all values, and values that no input enters."""
    constants = dict(fold(model, seen, None).constants)
    shapes = {**seen.shapes, **{name: array.shape for name, array in constants.items()}}
    _fold_zeros(model, constants, shapes, seen.dtypes)
    return shapes, constants


def _fold_zeros(
    model: ir.Model, values: dict[str, np.ndarray], shapes: Mapping[str, Shape], dtypes: Mapping[str, str]
) -> None:
    """Whole numbers times zero are zero, as exporters keep an input in a graph that does not need it."""
    for node in model.graph:
        name = str(node.outputs[0].name)
        names = [str(value.name) for value in node.inputs if value is not None]
        if node.op_type == "Mul" and dtypes.get(name, "")[:3] == "int":
            if any(each in values and not values[each].any() for each in names):
                values[name] = np.zeros(shapes[name], dtypes[name])
        elif node.op_type == "Cast" and names[0] in values and name not in values:
            values[name] = values[names[0]].astype(dtypes[name])


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except UnsupportedOp as reason:
        raise NoKernel(f"the {NAME} target {what}: {reason}") from reason


def _emit(builder: NetworkBuilder, node: ir.Node, step: LoweredStep | None) -> set[ir.Node]:
    """Add the calls of a node; the nodes behind it that they do the work of."""
    if step is not None:
        ON_CODES[node.op_type](builder, step)
        return set() if has_float_output(step) else {node.outputs[0].consumers()[0]}
    if node.op_type == "DequantizeLinear":
        return set()  # where somebody asks for the real value
    rounding = rounding_of(node)
    if node.op_type in BETWEEN_CODES and codes_of(node.inputs[0]) and rounding is not None and not node.domain:
        BETWEEN_CODES[node.op_type](builder, node, rounding)
        return {rounding}
    if node.op_type not in OPERATORS or node.domain:
        raise UnsupportedOp(not_known(node.op_type))
    OPERATORS[node.op_type](builder, node)
    return set()
