"""How the values of a network lie along time, where a call takes new frames and not a whole window.

Rows of a value come at an even pace: one for every `stride` frames. A convolution or pool along time computes new rows
of new ones and of those before them. Its row j ends with row j·stride − padding + reach − 1 of what it reads, and comes
out with the call that brings this row: `late` says how many rows come before row 0, which stand for no frames. What
reads several such values waits for the latest of them. What mixes rows otherwise, such as a mean or a product over all
of them, reads the window, and all behind it is computed in every call.

Padding in front of a window is padding in front of the first frame: state begins with zeros, and the network sees all
frames since. Without padding, rows depend on frames of the window alone, and a call computes what the network computes
of the last window. Padding behind a window is refused, unless a Slice cuts off what reads it, as in causal layers of
PyTorch.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.network import Shape, Stream, TimeRows
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.errors import NoKernel, TargetError
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import input_of, integer, integers, output_name, text
from ptqc.ir.operators import Trait, known
from ptqc.ir.operators.base import codes_of

# What leaves rows of zeros as they are.
KEEPS_ZEROS = (
    *("QuantizeLinear", "DequantizeLinear", "Identity", "Dropout", "Relu"),
    *("Transpose", "Reshape", "Squeeze", "Unsqueeze"),
)
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min")
REDUCES = ("ReduceMean", "ReduceSum", "GlobalAveragePool")
WINDOWS = ("Conv", "MaxPool", "AveragePool")
# Rows that a node reads, by place of its inputs.
Inputs = Mapping[int, TimeRows]
LAYERS = (*WINDOWS, "Gemm", "MatMul")


@dataclass(frozen=True)
class TimeReading:
    """What a node reads of values of a stream.

    history: rows before the new ones, by place of its inputs; None: the window. is_ended: whether as many rows as are
    new, and not all up to the newest. lowest: whether rows in front of the first frame are the lowest code, not zero.
    passes: whether it gives what it reads, in rows that are called otherwise.
    """

    history: Mapping[int, int] | None = None
    is_ended: bool = False
    lowest: bool = False
    passes: bool = False


@dataclass
class Timeline:
    """Rows of all values that have some, and how nodes read them.

    lowered: the graph. shapes: of values for a window. constants: values that no input enters.
    """

    lowered: Lowered
    shapes: Mapping[str, Shape]
    constants: Mapping[str, np.ndarray]
    rows: dict[str, TimeRows] = field(default_factory=dict)
    readings: dict[ir.Node, TimeReading] = field(default_factory=dict)
    is_padded: bool = False

    def follow(self, node: ir.Node) -> None:
        """The rows of what a node gives. Raises UnsupportedOp for what cannot be computed frame by frame."""
        rows = {place: self.rows[name] for place, name in self._inputs(node).items() if name in self.rows}
        if not rows or all(str(value.name) in self.constants for value in node.outputs):
            return
        if Trait.RECURRENT in _traits(node):
            raise UnsupportedOp(
                "a recurrent layer along time would go through the whole window in every call: export one step of it, "
                "with its state as an input and an output"
            )
        result = self._rule(node)(self, node, rows)
        if result is None:
            self._read_window(node, rows)
            return
        for value in node.outputs:
            if value.name and self.shapes[str(value.name)][result.axis] > 1:
                self.rows[str(value.name)] = result
            elif value.name:
                raise UnsupportedOp("it gives a single row, of which no stream can be made")

    def _rule(self, node: ir.Node) -> "Callable[[Timeline, ir.Node, Inputs], TimeRows | None]":
        is_alone = Trait.POINTWISE in _traits(node) or converts(node)
        return RULES.get(node.op_type, _same if is_alone else _whole)

    def _inputs(self, node: ir.Node) -> dict[int, str]:
        return {place: str(value.name) for place, value in enumerate(node.inputs) if value is not None}

    def _read_window(self, node: ir.Node, rows: Inputs) -> None:
        for each in rows.values():
            _check_tail(each)
        self.readings[node] = TimeReading()

    def name(self, node: ir.Node) -> str:
        """What messages call it."""
        return f"{node.op_type} {self.lowered.own_name(output_name(node))}"

    def shape(self, node: ir.Node, place: int = 0) -> Shape:
        """Of an input."""
        return self.shapes[self._inputs(node)[place]]

    def numbers(self, node: ir.Node, place: int, default: Sequence[int]) -> list[int]:
        """Whole numbers that an input is. Raises UnsupportedOp where they are not constant."""
        value = input_of(node, place)
        if value is None:
            return list(default)
        if str(value.name) not in self.constants:
            raise UnsupportedOp("an input of it that has to be constant is not")
        return [int(each) for each in self.constants[str(value.name)].reshape(-1)]


def timeline(
    lowered: Lowered, shapes: Mapping[str, Shape], constants: Mapping[str, np.ndarray], axis: int, frames: int | None
) -> tuple[Timeline, Stream]:
    """How the values of a graph lie along an axis of its input. Raises NoKernel, naming the node that is in the way."""
    model = lowered.model
    inputs = [str(value.name) for value in model.graph.inputs if str(value.name) not in constants and value.uses()]
    if len(inputs) != 1:
        raise TargetError(f"c_stream takes networks of one input, and this one has {len(inputs)}: {', '.join(inputs)}")
    (name,), shape = inputs, shapes[inputs[0]]
    if not 1 <= axis < len(shape):
        raise TargetError(
            f"c_stream is {axis}, and the input {name} has the shape {shape}: give the axis of time, 1 to "
            f"{len(shape) - 1}"
        )
    if shape[axis] == 1:
        raise TargetError(f"c_stream is {axis}, and the input {name} of shape {shape} has one frame along that axis")
    result = _followed(Timeline(lowered, shapes, constants, {name: TimeRows(axis)}))
    least = lcm(*(each.stride for each in result.rows.values()))
    count = least if frames is None else frames
    if count % least or count > shape[axis]:
        raise TargetError(
            f"c_frames is {frames}: the strides of this network take a multiple of {least} frames in a call, and its "
            f"window has {shape[axis]}"
        )
    skipped = 0 if result.is_padded else -shape[axis] % count
    if skipped:
        result = _followed(Timeline(lowered, shapes, constants, {name: TimeRows(axis, late=skipped)}))
    _check_gain(result)
    calls = -(-shape[axis] // count)
    stream = Stream(name, axis, count, shape[axis], calls, 0, skipped, result.is_padded, result.rows)
    return result, replace(stream, first=_first(model, stream))


def _followed(result: Timeline) -> Timeline:
    for node in result.lowered.model.graph:
        try:
            result.follow(node)
        except UnsupportedOp as reason:
            raise NoKernel(f"the c target cannot compute {result.name(node)} frame by frame: {reason}") from reason
    for value in result.lowered.model.graph.outputs:
        if (rows := result.rows.get(str(value.name))) is not None:
            try:
                _check_tail(rows)
            except UnsupportedOp as reason:
                raise NoKernel(f"the c target cannot give {value.name} frame by frame: {reason}") from reason
    return result


def _check_gain(result: Timeline) -> None:
    """Raises TargetError where no layer is computed row by row."""
    graph = result.lowered.model.graph
    layers = [node for node in graph if node.op_type in LAYERS and str(node.outputs[0].name) in result.rows]
    if not layers:
        whole = (node for node, reading in result.readings.items() if reading.history is None)
        mixing = next(map(result.name, whole), "the network")
        raise TargetError(
            f"c_stream saves nothing: {mixing} reads the whole axis at once, and no layer is in front of it; give the "
            "axis of time, along which convolutions or matmuls come first"
        )


def _first(model: ir.Model, stream: Stream) -> int:
    """The first call after which all outputs hold what they will."""
    calls = 1
    for value in model.graph.outputs:
        rows = stream.rows.get(str(value.name))
        calls = max(calls, stream.calls if rows is None else 1 + -(-max(rows.late, 0) // stream.new(rows)))
    return calls


def _check_tail(rows: TimeRows) -> None:
    if rows.tail:
        raise UnsupportedOp(
            f"{rows.padded} behind its window, for frames that have not come; train it without padding along time, "
            "or with padding in front alone (causal)"
        )


# Rules: rows of the output of a node, by place of the rows that it reads; None where it reads the window.


def _whole(_line: Timeline, _node: ir.Node, _rows: Inputs) -> TimeRows | None:
    return None


def _check_zeros(node: ir.Node, rows: TimeRows) -> None:
    if rows.late < 0 and node.op_type not in KEEPS_ZEROS:
        raise UnsupportedOp("it reads rows that a Pad adds in front of a window, which only convolutions and pools can")


def _same(_line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    if set(rows) != {0}:
        return None
    _check_zeros(node, rows[0])
    return rows[0]


def _pair(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """Operands, broadcast: those that come earlier wait."""
    rank = len(line.shapes[str(node.outputs[0].name)])
    axes = {place: each.axis + rank - len(line.shape(node, place)) for place, each in rows.items()}
    return _together(line, node, rows, axes, rank)


def _together(line: Timeline, node: ir.Node, rows: Inputs, axes: Mapping[int, int], rank: int) -> TimeRows | None:
    """Rows of several values side by side. axes: of time in the output, by place."""
    axis = axes[next(iter(axes))]
    for place in range(len(node.inputs)):
        shape = line.shape(node, place)
        own = axis - rank + len(shape)
        if place not in rows and own >= 0 and shape[own] > 1:
            return None
    if len(set(axes.values())) > 1 or len({each.stride for each in rows.values()}) > 1:
        return None
    if len(rows) < len(node.inputs) and any(
        str(value.name) not in line.constants
        for place, value in enumerate(node.inputs)
        if place not in rows and value is not None
    ):
        return None
    for each in rows.values():
        _check_zeros(node, each)
    late, tail = (max(getattr(each, name) for each in rows.values()) for name in ("late", "tail"))
    first = next(iter(rows.values()))
    padded = next((each.padded for each in rows.values() if each.tail), "")
    waits = {place: late - each.late for place, each in rows.items() if each.late < late}
    if waits:
        line.readings[node] = TimeReading(waits, is_ended=True)
    return TimeRows(axis, first.stride, late, tail, padded)


def _window(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """A convolution or pool."""
    source, shape = rows.get(0), line.shape(node)
    if source is None or source.axis < 2:
        return None
    rank, place = len(shape) - 2, source.axis - 2
    kernel = integers(node, "kernel_shape", line.shape(node, 1)[2:] if node.op_type == "Conv" else [1] * rank)
    strides, dilations = (integers(node, key, [1] * rank) for key in ("strides", "dilations"))
    before = integers(node, "pads", [0] * 2 * rank)[place]
    stride, reach = strides[place], (kernel[place] - 1) * dilations[place] + 1
    outputs, count = line.shapes[str(node.outputs[0].name)][source.axis], shape[source.axis]
    if outputs == 1 and not before:
        return None
    _check_tail(source)
    if before and source.late > 0:
        raise UnsupportedOp(
            f"it pads time by {before} in front, behind layers without such padding; train all layers with padding in "
            "front (causal), or all without"
        )
    if before and node.op_type == "AveragePool" and not integer(node, "count_include_pad", 0):
        raise UnsupportedOp("it divides by fewer rows at the first frames; train it without padding along time")
    if before and node.op_type == "MaxPool" and source.late < 0:
        raise UnsupportedOp("it pads rows that a Pad has padded already")
    line.is_padded |= bool(before)
    late = -(-(reach + source.late - before) // stride) - 1
    if late < 0:
        raise UnsupportedOp(f"{before - source.late} rows of padding in front are more than its window of {reach} rows")
    tail = max(0, outputs - (count - reach + before) // stride - 1)
    padded = f"{line.name(node)} pads time by {integers(node, 'pads', [])[rank + place]}" if tail else ""
    history = late * stride - source.late + before
    line.readings[node] = TimeReading({0: history}, lowest=bool(before) and node.op_type == "MaxPool")
    return TimeRows(source.axis, source.stride * stride, late, tail, padded)


def _matrix(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    if set(rows) != {0} or rows[0].axis == len(line.shape(node)) - 1 or integer(node, "transA", 0):
        return None
    _check_zeros(node, rows[0])
    return rows[0]


def _reduced(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    rank, axis = len(line.shape(node)), rows[0].axis
    if node.op_type == "GlobalAveragePool":
        axes = list(range(2, rank))
    else:
        listed = line.numbers(node, 1, ()) or integers(node, "axes", list(range(rank)))
        axes = [each % rank for each in listed]
    if axis in axes:
        return None
    _check_zeros(node, rows[0])
    keeps = node.op_type == "GlobalAveragePool" or integer(node, "keepdims", 1)
    return rows[0] if keeps else replace(rows[0], axis=axis - sum(each < axis for each in axes))


def _reshaped(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """The same order: time stays an axis if none is merged with it."""
    if set(rows) != {0}:
        return None
    source, shape = line.shape(node), line.shapes[str(node.outputs[0].name)]
    before, count = prod(source[: rows[0].axis]), source[rows[0].axis]
    axis = next((at for at, size in enumerate(shape) if size == count and prod(shape[:at]) == before), None)
    return None if axis is None else replace(rows[0], axis=axis)


def _transposed(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    rank = len(line.shape(node))
    return replace(rows[0], axis=integers(node, "perm", list(reversed(range(rank)))).index(rows[0].axis))


def _joined(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    rank = len(line.shape(node))
    if len(rows) < len(node.inputs) or integer(node, "axis", 0) % rank == rows[next(iter(rows))].axis:
        return None
    return _together(line, node, rows, {place: each.axis for place, each in rows.items()}, rank)


def _along_another(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """Softmax and Split along an axis that is not time."""
    default = -1 if node.op_type == "Softmax" else 0
    if set(rows) != {0} or integer(node, "axis", default) % len(line.shape(node)) == rows[0].axis:
        return None
    _check_zeros(node, rows[0])
    return rows[0]


def _sliced(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """Rows from one on, up to another: its row 0 is that one."""
    shape, result = line.shape(node), line.shapes[str(node.outputs[0].name)]
    starts = line.numbers(node, 1, ())
    axes = [each % len(shape) for each in line.numbers(node, 3, range(len(starts)))]
    steps = dict(zip(axes, line.numbers(node, 4, [1] * len(starts)), strict=True))
    source = rows[0]
    if shape[source.axis] == result[source.axis] and steps.get(source.axis, 1) == 1:
        _check_zeros(node, source)
        return source
    others = [axis for axis in range(len(shape)) if axis != source.axis]
    if any(shape[axis] != result[axis] or steps.get(axis, 1) != 1 for axis in others) or steps[source.axis] != 1:
        return None
    if result[source.axis] == 1:
        return None
    start = starts[axes.index(source.axis)]
    begin = min(start + shape[source.axis] if start < 0 else start, shape[source.axis])
    tail = max(0, source.tail - (shape[source.axis] - begin - result[source.axis]))
    _check_zeros(node, source)
    line.readings[node] = TimeReading({}, passes=True)
    return replace(source, late=source.late + begin, tail=tail, padded=source.padded if tail else "")


def _padded(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    """Zeros in front: state begins with them."""
    source, rank = rows[0], len(line.shape(node))
    pads = line.numbers(node, 1, ())
    axes = [each % rank for each in line.numbers(node, 3, range(rank))]
    padded = {axis for place, axis in enumerate(axes) if pads[place] or pads[place + len(axes)]}
    if source.axis not in padded:
        _check_zeros(node, source)
        return source
    before, after = (pads[axes.index(source.axis) + offset] for offset in (0, len(axes)))
    if len(padded) > 1 or text(node, "mode", "constant") != "constant" or before < 0 or after < 0:
        raise UnsupportedOp("it pads time with something else than zeros, or other axes as well")
    _check_tail(source)
    if before and source.late > 0:
        raise UnsupportedOp(
            f"it pads time by {before} in front, behind layers without such padding; train all layers with padding in "
            "front (causal), or all without"
        )
    line.is_padded |= bool(before)
    line.readings[node] = TimeReading({}, passes=True)
    where = f"{line.name(node)} pads time by {after}" if after else ""
    return replace(source, late=source.late - before, tail=after, padded=where)


def _gathered(line: Timeline, node: ir.Node, rows: Inputs) -> TimeRows | None:
    axis = integer(node, "axis", 0) % len(line.shape(node))
    if set(rows) != {0} or axis == rows[0].axis:
        return None
    _check_zeros(node, rows[0])
    return replace(rows[0], axis=rows[0].axis + (len(line.shape(node, 1)) - 1 if axis < rows[0].axis else 0))


RULES: Mapping[str, Callable[[Timeline, ir.Node, Inputs], TimeRows | None]] = {
    **dict.fromkeys(PAIRS, _pair),
    **dict.fromkeys(WINDOWS, _window),
    **dict.fromkeys(("Gemm", "MatMul"), _matrix),
    **dict.fromkeys(REDUCES, _reduced),
    **dict.fromkeys(RESHAPES, _reshaped),
    **dict.fromkeys(("Softmax", "Split"), _along_another),
    "Pow": _same,
    "Transpose": _transposed,
    "Concat": _joined,
    "Slice": _sliced,
    "Pad": _padded,
    "Gather": _gathered,
}


def _traits(node: ir.Node) -> frozenset[Trait]:
    operator = known(node)
    return frozenset() if operator is None else frozenset(operator.traits)


def converts(node: ir.Node) -> bool:
    """Whether it makes codes of real values, or real values of codes."""
    return Trait.CONVERTS in _traits(node)


def memory_name(value: ir.Value) -> str:
    """What the rows of a value are called that lie in memory: those of its codes where it stands for some."""
    return codes_of(value) or str(value.name)


def inputs_of(node: ir.Node, names: Collection[str]) -> dict[int, ir.Value]:
    """Inputs of a node with these names, by place."""
    return {place: value for place, value in enumerate(node.inputs) if value is not None and value.name in names}
