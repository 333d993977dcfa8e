"""LSTM, GRU and RNN with constant weights: the states of all steps, and of these what the node gives."""

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.drafts import StridedSlice
from ptqc.codegen.kernels.emission import Emission
from ptqc.codegen.kernels.families import recurrent
from ptqc.codegen.program.built import Declined
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.recurrent import CELLS, activation_of, directions_of, refusal, refusal_with
from ptqc.graph.nodes import input_of, integer
from ptqc.native.lengths import varies

WEIGHTS, RECURRENCE, BIAS, FIRST = 1, 2, 3, (5, 6)
LAST_GATE = 2  # of a GRU


def emit(emission: Emission, node: ir.Node) -> None:
    """All of it."""
    if emission.isa.by_element:
        raise Declined(refusal(node) or "its steps depend on each other")
    _check(emission, node)
    name, given = emission.whole(node.inputs[0])
    cell, weights = CELLS[node.op_type], _weights(emission, node)
    steps, texts, _ = given.shape
    hidden, count = weights.inputs.shape[-1], len(weights.is_reverse)
    before = [emission.whole(node.inputs[place]) for place in FIRST[: len(cell.states)] if input_of(node, place)]
    has_cells = len(cell.states) > 1
    states = Layout((steps + has_cells, count, texts, hidden), "float32", plain=True)
    kernel = recurrent.states(node.op_type, given, [layout for _, layout in before], states, weights, emission.isa)
    inputs = [name, *(source for source, _ in before)]
    all_of = _output(node, 0)
    if all_of is not None and not has_cells:  # the states are what the node gives
        made = str(all_of.name)
        emission.add_whole(kernel, inputs, [given], all_of)
    else:
        made = f"{next(value.name for value in node.outputs if value.name)}@states"
        emission.add(kernel, inputs, made, states)
        if all_of is not None:
            emission.add_whole(StridedSlice(emission.isa, [0] * 4, [1] * 4), [made], [states], all_of)
    for place, behind, is_reverse in ((1, steps, weights.is_reverse), (2, steps + 1, [False] * count)):
        if (output := _output(node, place)) is not None:
            layout = emission.whole_output(output, "float32")
            emission.add_whole(recurrent.last(states, layout, is_reverse, behind), [made], [states], output)


def _check(emission: Emission, node: ir.Node) -> None:
    """Raises Declined for what the kernel does not compute."""
    if emission.axes.batch is not None:
        raise Declined("it has an axis of steps in front")
    if varies(emission.sizes(node.inputs[0])):
        raise Declined("its inputs vary in size")
    if emission.dtype(node.inputs[0]) != "float32":
        raise Declined("it computes in float32 only")
    has_first = [input_of(node, place) is not None for place in FIRST[: len(CELLS[node.op_type].states)]]
    if len(set(has_first)) > 1:
        raise Declined("one of its first states is missing")
    if (reason := refusal_with(node, int(emission.sizes(node.inputs[0])[0]))) is not None:
        raise Declined(reason)


def _weights(emission: Emission, node: ir.Node) -> recurrent.RecurrentWeights:
    """Weights as the kernel reads them: units of a gate next to each other."""
    gates = CELLS[node.op_type].gates
    is_linear = node.op_type == "GRU" and bool(integer(node, "linear_before_reset", 0))
    w, r = emission.number(node.inputs[WEIGHTS]), emission.number(node.inputs[RECURRENCE])
    count, hidden = len(w), r.shape[-1]
    plain = np.zeros((count, 2 * gates * hidden), np.float32)
    given = emission.number(node.inputs[BIAS]) if input_of(node, BIAS) is not None else plain
    of_x, of_h = np.split(given.reshape(count, 2 * gates, hidden), 2, axis=1)
    bias = of_x + of_h
    if is_linear:
        bias = np.concatenate([bias[:, :LAST_GATE], of_x[:, LAST_GATE:], of_h[:, LAST_GATE:]], 1)

    def turned(matrices: np.ndarray) -> np.ndarray:
        by_gate = matrices.reshape(count, gates, hidden, -1).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(by_gate, np.float32)

    is_reverse = [direction == "r" for direction in directions_of(node)]
    activation = str(activation_of(node))
    return recurrent.RecurrentWeights(
        turned(w), turned(r), np.asarray(bias, np.float32), is_reverse, is_linear, activation
    )


def _output(node: ir.Node, place: int) -> ir.Value | None:
    """One of the outputs, if the node has it."""
    return node.outputs[place] if place < len(node.outputs) and node.outputs[place].name else None
