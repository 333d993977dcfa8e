"""LSTM, GRU and RNN: all steps in one kernel, a state in memory between them. Vectors run over the units of a state.

Equations and the order of gates are those of ONNX's operators.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import mathematics
from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.families.functions import UNARY
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, fill, in_vectors, span
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import EXACT, Accuracy

# Vectors of a gate that are summed at the same time: with the gates, enough for a processor to add without waiting.
VECTORS = 2
# Each step has several functions that are ½ or 1 and something, and errors go on from step to step.
ACCURACY = Accuracy(at_one=1e-5)


@dataclass(frozen=True, eq=False)
class RecurrentWeights:
    """Of one operator, direction by direction (D). gates: G, of H (hidden) units each; I inputs.

    inputs: (D, I, G, H). recurrence: (D, H, G, H). bias: (D, G, H), and of a linear GRU one more: that of the product
    of the state for the last gate. is_linear: whether a GRU resets that product, not the state. activation: of an RNN.
    is_reverse: of each direction, whether it begins with the last step.
    """

    inputs: Stored
    recurrence: Stored
    bias: np.ndarray
    gates: int
    hidden: int
    is_reverse: Sequence[bool]
    is_linear: bool = False
    activation: str = "Tanh"


# Of a sum: its bias, and the gates whose weights inputs and the state are multiplied with.
Sum = tuple[int, int | None, int | None]


@dataclass(frozen=True, eq=False)
class _Step:
    """What one step is written with, for one direction and one text.

    x: an input. of_x, of_h: weights of an input, or of a unit of the state, for a gate and some units. bias: of these.
    write: stores units of the new state. h, c: buffers of the state before. later: one more buffer for each unit: what
    c becomes, or what a GRU keeps of h. open: one more.
    """

    grid: KernelGrid
    x: Callable[[Any], Any]
    of_x: Callable[[Any, int, Any], Any]
    of_h: Callable[[Any, int, Any], Any]
    bias: Callable[[int, Any], Any]
    write: Callable[[Any, Any], None]
    h: Any
    c: Any
    later: Any
    open: Any
    width: int
    hidden: int
    lanes: int
    vectors: int
    activation: str

    @contextmanager
    def block(self) -> Iterator[Any]:
        """A loop over blocks of vectors: the first unit. The last one overlaps the one before it if units are left."""
        size = self.lanes * self.vectors
        with self.grid.each([-(-self.hidden // size)]) as (block,):
            yield T.Bind(T.min(block * size, self.hidden - size))

    def units(self, column: Any) -> Iterator[tuple[int, Any]]:
        """The vectors of a block, and their units."""
        for vector in range(self.vectors):
            yield vector, span(column + vector * self.lanes, self.lanes)

    def sums(self, column: Any, wanted: Sequence[Sum], h: Any) -> Callable[[int, int], Any]:
        """What gives a sum of a vector, when called with their places. h: what is multiplied in place of the state."""
        size = self.lanes * self.vectors
        result = self.grid.registers(len(wanted) * size, "float32")

        def at(place: int, vector: int) -> Any:
            return span(place * size + vector * self.lanes, self.lanes)

        def add(
            count: int, value: Callable[[Any], Any], weight: Callable[..., Any], gates: Sequence[int | None]
        ) -> None:
            with T.serial(count) as k:
                factor = fill(T.Bind(value(k)), self.lanes)
                for place, gate in enumerate(gates):
                    for vector, units in self.units(column) if gate is not None else ():
                        total = result[at(place, vector)] + factor * weight(k, gate, units)
                        T.buffer_store(result, total, [at(place, vector)])

        for place, (bias, _, _) in enumerate(wanted):
            for vector, units in self.units(column):
                T.buffer_store(result, self.bias(bias, units), [at(place, vector)])
        add(self.width, self.x, self.of_x, [gate for _, gate, _ in wanted])
        add(self.hidden, lambda k: h[k], self.of_h, [gate for _, _, gate in wanted])
        return lambda place, vector: result[at(place, vector)]

    def sigmoid(self, x: Any) -> Any:
        return T.Bind(mathematics.sigmoid(x, self.lanes))

    def tanh(self, x: Any) -> Any:
        return T.Bind(UNARY["Tanh"](x, self.lanes, ()))


def _lstm(step: _Step) -> None:
    """i, o, f = σ(…), g = tanh(…); c = f · c + i · g; h = o · tanh(c)."""
    with step.block() as column:
        value = step.sums(column, [(gate, gate, gate) for gate in range(4)], step.h)
        for vector, units in step.units(column):
            i, o, f = (step.sigmoid(value(gate, vector)) for gate in range(3))
            cell = T.Bind(f * step.c[units] + i * step.tanh(value(3, vector)))
            T.buffer_store(step.later, cell, [units])
            step.write(units, o * step.tanh(cell))
    in_vectors(step.hidden, step.lanes, lambda k, n: T.buffer_store(step.c, step.later[span(k, n)], [span(k, n)]))


def _linear_gru(step: _Step) -> None:
    """z, r = σ(…), n = tanh(x W + r · (h R)); h = (1 - z) · n + z · h."""
    with step.block() as column:
        value = step.sums(column, [(0, 0, 0), (1, 1, 1), (2, 2, None), (3, None, 2)], step.h)
        for vector, units in step.units(column):
            z, r = (step.sigmoid(value(gate, vector)) for gate in range(2))
            new = step.tanh(value(2, vector) + r * value(3, vector))
            step.write(units, new + z * (step.h[units] - new))


def _gru(step: _Step) -> None:
    """z, r = σ(…), n = tanh(x W + (r · h) R); h = (1 - z) · n + z · h."""
    with step.block() as column:
        value = step.sums(column, [(0, 0, 0), (1, 1, 1)], step.h)
        for vector, units in step.units(column):
            T.buffer_store(step.open, step.sigmoid(value(0, vector)), [units])
            T.buffer_store(step.later, step.sigmoid(value(1, vector)) * step.h[units], [units])
    with step.block() as column:
        value = step.sums(column, [(2, 2, 2)], step.later)
        for vector, units in step.units(column):
            new = step.tanh(value(0, vector))
            step.write(units, new + step.open[units] * (step.h[units] - new))


def _rnn(step: _Step) -> None:
    """h = f(…)."""
    with step.block() as column:
        value = step.sums(column, [(0, 0, 0)], step.h)
        for vector, units in step.units(column):
            step.write(units, UNARY[step.activation](value(0, vector), step.lanes, ()))


CELLS: Mapping[str, Callable[[_Step], None]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def states(
    op_type: str, x: Layout, first: Sequence[Layout], y: Layout, weights: RecurrentWeights, isa: Isa
) -> KernelSource:
    """States of all steps (T, D, N, H) of inputs (T, N, I); of an LSTM the last cell states in one more step.

    first: layouts of the states before, h and then c, (D, N, H) each; without any they are zero.
    """
    steps, texts, width = x.shape
    directions, gates, hidden = len(weights.is_reverse), weights.gates, weights.hidden
    biases, is_lstm = weights.bias.shape[1], op_type == "LSTM"
    lanes = min(isa.lanes, hidden)
    vectors = min(VECTORS, hidden // lanes)
    cell = _linear_gru if weights.is_linear else CELLS[op_type]

    def body(grid: KernelGrid, inputs: Any, *buffers: Any) -> None:
        (*before, of_x, of_h, bias, out) = buffers
        work = steps * directions * texts * gates * hidden * (width + hidden)
        with grid.nest((directions * texts,), work) as (sample, (index,)):
            direction, text = index // texts, index % texts
            h, c, later, opened = (grid.registers(hidden, "float32") for _ in range(4))
            for buffer, place in zip((h, c), range(2), strict=True):
                source = before[place] if place < len(before) else None
                _begin(buffer, hidden, lanes, source, sample, index)
            with T.serial(steps) as turn:
                now = T.Bind(_now(turn, steps, direction, weights.is_reverse))
                row = T.Bind(((now * directions + direction) * texts + text) * hidden)
                step = _Step(
                    grid=grid,
                    x=lambda k: inputs[sample, (now * texts + text) * width + k],
                    of_x=lambda k, gate, units: of_x[((direction * width + k) * gates + gate) * hidden + units],
                    of_h=lambda k, gate, units: of_h[((direction * hidden + k) * gates + gate) * hidden + units],
                    bias=lambda gate, units: bias[(direction * biases + gate) * hidden + units],
                    write=lambda units, value: T.buffer_store(out, value, [sample, row + units]),
                    h=h,
                    c=c,
                    later=later,
                    open=opened,
                    width=width,
                    hidden=hidden,
                    lanes=lanes,
                    vectors=vectors,
                    activation=weights.activation,
                )
                cell(step)
                in_vectors(hidden, lanes, lambda k, n: T.buffer_store(h, out[sample, row + span(k, n)], [span(k, n)]))
            if is_lstm:
                end = (steps * directions * texts + index) * hidden
                in_vectors(hidden, lanes, lambda k, n: T.buffer_store(out, c[span(k, n)], [sample, end + span(k, n)]))

    constants: list[Stored] = [weights.inputs, weights.recurrence, weights.bias]
    return build(op_type.lower(), [x, *first], constants, y, body, accuracy=ACCURACY)


def _begin(buffer: Any, hidden: int, lanes: int, source: Any, sample: Any, index: Any) -> None:
    """Fill a state with that before the first step, or with zeros."""

    def visit(k: Any, n: int) -> None:
        value = fill(T.float32(0), n) if source is None else source[sample, index * hidden + span(k, n)]
        T.buffer_store(buffer, value, [span(k, n)])

    in_vectors(hidden, lanes, visit)


def _now(turn: Any, steps: int, direction: Any, is_reverse: Sequence[bool]) -> Any:
    """The step that comes in a direction's turn."""
    backwards = steps - 1 - turn
    if len(set(is_reverse)) == 1:
        return backwards if is_reverse[0] else turn
    return T.Select(direction == is_reverse.index(True), backwards, turn)


def last(x: Layout, y: Layout, is_reverse: Sequence[bool], steps: int) -> KernelSource:
    """The states (D, N, H) behind the last step of each direction, of all (at least `steps`, D, N, H)."""
    places = [0 if reverse else steps - 1 for reverse in is_reverse]

    def body(grid: KernelGrid, source: Any, out: Any) -> None:
        with grid.elements(y) as (sample, place):
            direction = place[0]
            step = places[0] if len(set(places)) == 1 else T.Select(direction == 0, places[0], places[-1])
            T.buffer_store(out, source[sample, x.offset([step, *place])], [sample, y.offset(place)])

    return build("last_states", [x], [], y, body, accuracy=EXACT)
