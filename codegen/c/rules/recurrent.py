"""LSTM and GRU: a sequence of one sample, with its state."""

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.builder import REAL, NetworkBuilder
from ptqc.codegen.c.network import SCRATCH, STRUCTURE, Argument, CTensor, Place, Step
from ptqc.codegen.c.rules.real import RealWeights, check_real
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.nodes import input_of, integer, text

GATES = {"LSTM": 4, "GRU": 3}
REAL_BYTES = 4


def recurrent(builder: NetworkBuilder, node: ir.Node) -> None:
    """LSTM or GRU: a sequence of one sample, with its state."""
    gates = GATES[node.op_type]
    x = builder.plain(builder.read(node.inputs[0]))
    check_real(x)
    directions, _, units = builder.shapes[builder.name(node.inputs[2])]
    odd = [place for place in (4, 7) if input_of(node, place) is not None]
    unusual = {"activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout"}
    stated = {key for key in node.attributes if key in unusual and not _is_usual(node, key)}
    if x.shape[1] != 1 or odd or stated:
        raise UnsupportedOp(
            "only one sample of a fixed length, with the usual activations and without peepholes, has a kernel"
        )
    if node.op_type == "GRU" and not integer(node, "linear_before_reset", 0):
        raise UnsupportedOp(
            "a GRU that resets its state before it multiplies it has no kernel: train it with linear_before_reset = 1"
        )
    finals = [builder.new(value, (directions, 1, units), REAL) for value in ("h", "c")[: 1 + (gates == 4)]]
    for place, tensor in enumerate(finals):
        _begin(builder, node, tensor, input_of(node, 5 + place))
    whole = builder.output(node.outputs[0], REAL) if node.outputs[0].name else None
    for number in range(directions):
        _direction(builder, node, x, whole, finals, number)
    for value, result in zip(node.outputs, (whole, *finals), strict=False):
        if value.name and result is not None:
            builder.place(str(value.name), result)


def _direction(
    builder: NetworkBuilder, node: ir.Node, x: CTensor, whole: CTensor | None, finals: list[CTensor], number: int
) -> None:
    """One direction of a layer. whole: of all steps, if it is asked for; finals: states."""
    (steps, _, width), (directions, _, units) = x.shape, finals[0].shape
    gates, y = GATES[node.op_type], whole
    if whole is not None and directions > 1:
        y = builder.new(whole.buffer.name, (steps, 1, 1, units), REAL)

    def of_direction(array: np.ndarray) -> np.ndarray:
        return np.asarray(array[number])

    inputs, recurrence = (RealWeights(builder, node.inputs[place], of_direction) for place in (1, 2))
    bias = builder.number(node.inputs[3])[number] if input_of(node, 3) is not None else None
    biases = "0" if bias is None else builder.network.constants.add(bias.astype(np.float32), "bias")
    is_reversed = int(text(node, "direction", "forward") == "reverse" or number == 1)
    fields = f"{{{inputs.text}, {recurrence.text}, {biases}, {steps}, {width}, {units}, {is_reversed}}}"
    states = [Place(tensor.buffer, REAL_BYTES * number * units) for tensor in finals]
    memory = REAL_BYTES * units * (gates if gates == GATES["LSTM"] else 2 * gates + 1)
    memory += max(inputs.scratch, recurrence.scratch)
    arguments: list[Argument] = [STRUCTURE, Place(x.buffer), "0" if y is None else Place(y.buffer), *states, SCRATCH]
    step = Step(
        node.op_type.lower(),
        arguments,
        [x.buffer, *(tensor.buffer for tensor in finals)],
        [*([] if y is None else [y.buffer]), *(tensor.buffer for tensor in finals)],
        structure=lambda _: fields,
        scratch=lambda _: memory,
        products=steps * gates * units * (width + units),
        kinds=[*inputs.kinds, *recurrence.kinds],
    )
    builder.add(step, node.op_type)
    if whole is not None and y is not None and y is not whole:
        value = whole.buffer.name if number == directions - 1 else ""
        builder.move(y, whole, y.steps, [directions * units, 0, 0, 1], y.shape, (0, number * units), value)


def _is_usual(node: ir.Node, key: str) -> bool:
    value = node.attributes[key].value
    if key == "activations":
        usual = ["Sigmoid", "Tanh", "Tanh"] if node.op_type == "LSTM" else ["Sigmoid", "Tanh"]
        return [str(name) for name in value] in (usual, usual * 2)
    return not value


def _begin(builder: NetworkBuilder, node: ir.Node, tensor: CTensor, value: ir.Value | None) -> None:
    """The state before the first step."""
    if value is None:
        step = Step("memset", [Place(tensor.buffer), "0", str(tensor.buffer.bytes)], [], [tensor.buffer])
    else:
        first = builder.plain(builder.read(value))
        check_real(first)
        ends = [Place(tensor.buffer), Place(first.buffer)]
        step = Step("memcpy", [*ends, str(tensor.buffer.bytes)], [first.buffer], [tensor.buffer])
    builder.add(step, node.op_type)
