"""Builds a network that takes new frames: the calls of one for windows, on new rows and on rows that stay."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx_ir as ir

from ptqc.codegen.c.builder import CODES, NetworkBuilder
from ptqc.codegen.c.network import Buffer, CTensor, Home, Place, Shape, Step, Stream, TimeRows, renamed
from ptqc.codegen.c.timeline import Timeline, TimeReading, converts, inputs_of, memory_name
from ptqc.codegen.program.program import UnsupportedOp
from ptqc.ir.lowered import Lowered
from ptqc.ir.nodes import input_of
from ptqc.ir.operators.base import params_of

# Rows of a value in memory: its name, and whether those in front of the first frame are the lowest code.
Key = tuple[str, bool]


class StreamBuilder(NetworkBuilder):
    """A network in the making that takes frames. line: how its values lie along time."""

    def __init__(
        self,
        lowered: Lowered,
        shapes: Mapping[str, Shape],
        dtypes: Mapping[str, str],
        constants: Mapping[str, np.ndarray],
        line: Timeline,
        stream: Stream,
    ) -> None:
        super().__init__(lowered, shapes, dtypes, constants)
        for name, rows in line.rows.items():
            self.shapes[name] = _with(shapes[name], rows.axis, stream.new(rows))
        self.line, self.stream, self.network.stream = line, stream, stream
        self._most: dict[Key, int] = {}
        self._states: dict[Key, CTensor] = {}
        self._skips: dict[ir.Node, int] = {}
        for node, reading in line.readings.items():
            for value, history in self._histories(node, reading):
                key = memory_name(value), reading.lowest
                self._most[key] = max(self._most.get(key, 0), history)

    def _histories(self, node: ir.Node, reading: TimeReading) -> Iterator[tuple[ir.Value, int]]:
        """What a node reads of the past: values, and rows before the new ones."""
        if reading.passes:
            return
        for place, value in inputs_of(node, self.line.rows).items():
            if reading.history is None:
                yield value, self.stream.begin(self.line.rows[str(value.name)])
            elif place in reading.history:
                yield value, reading.history[place]

    @contextmanager
    def reading(self, node: ir.Node) -> Iterator[None]:
        reading = self.line.readings.get(node)
        if reading is None:
            yield
            return
        before = self.tensors, self._reals, self.shapes
        replaced: dict[str, CTensor] = {}
        for value, history in self._histories(node, reading):
            rows = self.line.rows[str(value.name)]
            tensor = self._state((memory_name(value), reading.lowest), value, rows)
            skip = self._most[memory_name(value), reading.lowest] - history
            if reading.history is None:
                tensor = self._part(tensor, rows.axis, skip, self.windows[str(value.name)][rows.axis])
            elif reading.is_ended:
                tensor = self._part(tensor, rows.axis, skip, self.stream.new(rows))
            else:
                self._skips[node] = skip
            replaced |= dict.fromkeys((str(value.name), memory_name(value)), tensor)
        in_memory = {memory_name(value) for value in node.inputs if value is not None}
        self.shapes = self.shapes | {name: tensor.shape for name, tensor in replaced.items()}
        self._reals = {name: each for name, each in self._reals.items() if name not in replaced}
        self.tensors = {name: each for name, each in self.tensors.items() if name not in replaced}
        self.tensors |= {name: each for name, each in replaced.items() if name in in_memory}
        yield
        added = {name: each for name, each in self.tensors.items() if name not in replaced}
        self.tensors, self._reals, self.shapes = before
        self.tensors.update(added)

    def passes(self, node: ir.Node) -> bool:
        reading = self.line.readings.get(node)
        if reading is None or not reading.passes:
            return False
        value = node.inputs[0]
        assert value is not None
        filler = float(self.number(node.inputs[2]).reshape(-1)[0]) if node.op_type == "Pad" and input_of(node, 2) else 0
        if node.op_type == "Pad" and filler != self._zero(value):
            raise UnsupportedOp(f"it pads time with {filler:g}, and only with zeros can state begin")
        self.place(str(node.outputs[0].name), self.read(value))
        return True

    def pads(self, node: ir.Node, rank: int) -> list[int]:
        pads = super().pads(node, rank)
        if node in self._skips:
            pads[self.line.rows[self.name(node.inputs[0])].axis - 2] = -self._skips[node]
        return pads

    def _state(self, key: Key, value: ir.Value, rows: TimeRows) -> CTensor:
        """New rows behind as many as anything reads of the past."""
        name, is_lowest = key
        source, past = self.tensors[name] if name in self.tensors else self.read(value), self._most[key]
        if not past:
            return source
        if key not in self._states:
            if source.shape[rows.axis] == 1:  # a single row lies in any order: time outside moves whole rows
                inner = (axis for axis in source.order if axis != rows.axis)
                source = renamed(source, order=(rows.axis, *inner))
            shape = _with(source.shape, rows.axis, past + source.shape[rows.axis])
            item, at = np.dtype(source.dtype).itemsize, source.order.index(rows.axis)
            buffer = Buffer(f"rows of {self.lowered.own_name(name)}", prod(shape) * item, Home.STATE)
            self.network.states[buffer] = 0 if is_lowest else self._zero(value)
            blocks, row = prod(source.in_memory[:at]), prod(source.in_memory[at + 1 :]) * item
            numbers = map(str, (blocks, past * row, source.shape[rows.axis] * row))
            step = Step(
                "push_rows",
                [Place(buffer), Place(source.buffer), *numbers],
                [source.buffer],
                [buffer],
                overwrites=False,
            )
            self.add(step, "state")
            self._states[key] = CTensor(buffer, shape, source.dtype, source.order)
        return self._states[key]

    def _part(self, source: CTensor, axis: int, first: int, count: int) -> CTensor:
        """Some rows of a value: in its memory where these are all."""
        if count == source.shape[axis]:
            return source
        result = self.new(source.buffer.name, _with(source.shape, axis, count), source.dtype, source.order)
        offset = first * source.steps[axis]
        self.move(source, result, source.steps, result.steps, result.shape, (offset, 0))
        return result

    def _zero(self, value: ir.Value) -> int:
        """The byte that real zero is."""
        if self.dtypes.get(memory_name(value)) != CODES:
            return 0
        maker: ir.Node | None = value.producer()
        while maker is not None and not converts(maker):
            first = maker.inputs[0]
            maker = first.producer() if first is not None else None
        return 0 if maker is None else params_of(maker).zero_point


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
