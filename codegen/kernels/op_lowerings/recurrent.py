"""LSTM, GRU and RNN with constant weights: the states of all steps, and of these what the node gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.codegen.kernels.families import recurrent
from ptqc.codegen.kernels.pending import StridedSlice
from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.constants import Arranged, IndexSource, Order, ScaledPanels, Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.codegen.program.recurrent import (
    BIASES,
    CELLS,
    FIRST,
    RECURRENCE,
    WEIGHTS,
    activation_of,
    directions_of,
    is_linear,
    refusal,
    refusal_with,
)
from ptqc.ir.nodes import input_of, integer, output_name, producer
from ptqc.runtime.lengths import varies

LAST_GATE = 2  # of a GRU


def emit(builder: ProgramBuilder, node: ir.Node) -> None:
    """All of it."""
    if builder.isa.by_element:
        raise UnsupportedOp(refusal(node) or "its steps depend on each other")
    _check(builder, node)
    name, operand = builder.whole(node.inputs[0])
    cell, weights = CELLS[node.op_type], _weights(builder, node)
    steps, texts, _ = operand.shape
    hidden, count = weights.hidden, len(weights.is_reverse)
    before = [builder.whole(node.inputs[place]) for place in FIRST[: len(cell.states)] if input_of(node, place)]
    has_cells = len(cell.states) > 1
    states = Layout((steps + has_cells, count, texts, hidden), "float32", row_major=True)
    kernel = recurrent.states(node.op_type, operand, [layout for _, layout in before], states, weights, builder.isa)
    inputs = [name, *(source for source, _ in before)]
    all_of = _output(node, 0)
    if all_of is not None and not has_cells:  # the states are what the node gives
        result = str(all_of.name)
        builder.add_whole(kernel, inputs, [operand], all_of)
    else:
        result = f"{output_name(node)}@states"
        builder.add(kernel, inputs, result, states)
        if all_of is not None:
            builder.add_whole(StridedSlice(builder.isa, [0] * 4, [1] * 4), [result], [states], all_of)
    for place, behind, is_reverse in ((1, steps, weights.is_reverse), (2, steps + 1, [False] * count)):
        if (output := _output(node, place)) is not None:
            layout = builder.whole_output(output, "float32")
            builder.add_whole(recurrent.last(states, layout, is_reverse, behind), [result], [states], output)


def _check(builder: ProgramBuilder, node: ir.Node) -> None:
    if builder.axes.batch is not None:
        raise UnsupportedOp("it has an axis of steps in front")
    if varies(builder.sizes(node.inputs[0])):
        raise UnsupportedOp("its inputs vary in size")
    if builder.dtype(node.inputs[0]) != "float32":
        raise UnsupportedOp("it computes in float32 only")
    has_first = [input_of(node, place) is not None for place in FIRST[: len(CELLS[node.op_type].states)]]
    if len(set(has_first)) > 1:
        raise UnsupportedOp("one of its first states is missing")
    if (reason := refusal_with(node, int(builder.sizes(node.inputs[0])[0]))) is not None:
        raise UnsupportedOp(reason)


def _weights(builder: ProgramBuilder, node: ir.Node) -> recurrent.RecurrentWeights:
    """Weights as the kernel reads them."""
    gates, hidden = CELLS[node.op_type].gates, integer(node, "hidden_size", 0)
    is_reverse = [direction == "r" for direction in directions_of(node)]
    count, rows = len(is_reverse), gates * hidden
    plain = np.zeros((count, 2 * rows), np.float32)
    operand = builder.number(node.inputs[BIASES]) if input_of(node, BIASES) is not None else plain
    of_x, of_h = np.split(operand.reshape(count, 2 * gates, hidden), 2, axis=1)
    bias = of_x + of_h
    if is_linear(node):
        bias = np.concatenate([bias[:, :LAST_GATE], of_x[:, LAST_GATE:], of_h[:, LAST_GATE:]], 1)
    return recurrent.RecurrentWeights(
        _turned(builder, node.inputs[WEIGHTS], rows),
        _turned(builder, node.inputs[RECURRENCE], rows),
        np.asarray(bias, np.float32),
        gates,
        hidden,
        is_reverse,
        is_linear(node),
        str(activation_of(node)),
    )


def _turned(builder: ProgramBuilder, value: ir.Value | None, rows: int) -> Stored:
    """Weights (directions, rows, inputs) with the last two axes exchanged; as codes where they lie so in the file."""
    maker = producer(value, "DequantizeLinear")
    if maker is None or not _has_scales_of_rows(builder, maker):
        return np.ascontiguousarray(builder.number(value).transpose(0, 2, 1), np.float32)
    codes, scale = builder.number(maker.inputs[0]), builder.number(maker.inputs[1]).reshape(-1)
    count, depth = len(codes), codes.shape[-1]

    def source(place: Sequence[Any]) -> IndexSource:
        direction, column, row = place
        return IndexSource((direction * rows + row) * depth + column)

    scales = np.tile(np.broadcast_to(scale, (rows,)), count).astype(np.float32)
    return ScaledPanels(Arranged(codes, Order((count, depth, rows), source)), scales, count)


def _has_scales_of_rows(builder: ProgramBuilder, maker: ir.Node) -> bool:
    """Whether weights are int8 codes times a scale of each row, or of all."""
    codes, scale = builder.number(maker.inputs[0]), builder.number(maker.inputs[1])
    is_shifted = input_of(maker, 2) is not None and bool(np.any(builder.number(maker.inputs[2])))
    is_of_rows = scale.size == 1 or (scale.ndim == 1 and integer(maker, "axis", 1) == 1)
    return codes.dtype == np.int8 and is_of_rows and not is_shifted


def _output(node: ir.Node, place: int) -> ir.Value | None:
    return node.outputs[place] if place < len(node.outputs) and node.outputs[place].name else None
