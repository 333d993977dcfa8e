"""Where the channels of the last layers are in an output of the graph, and which of them went through a sigmoid.

An output is followed back to the layers that made it, through everything that only moves, joins, cuts or maps values;
from there the axis of the layers' channels is told by the operators' own rules. Shapes are those of one run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import constant, input_of, integer, integers
from ptqc.ir.operators import EVERY, Trait, named

Shapes = Mapping[str, tuple[int, ...]]

# Axis of the channels that an operator makes.
CHANNELS = {operator.name: operator.channels for operator in EVERY if operator.channels is not None}
PRODUCTS = named(Trait.PRODUCT)
# What keeps a probability one, or is looked at again in the data.
KEEPS_SCORES = named(Trait.COPIES, Trait.KEEPS_SCORES)
# Keep what a layer gave, up to a factor and a bias.
LINEAR = named(Trait.AFFINE, Trait.COPIES, Trait.RESHAPES, Trait.LINEAR)
DEEPEST = 150


@dataclass(frozen=True, eq=False)
class Trace:
    """axis: of the channels; None: they were cut to one and their axis is gone.

    source: by channel, which layer made it. scores: by channel, whether it went through a sigmoid last. direct: whether
    only LINEAR operators are between.
    """

    axis: int | None
    source: np.ndarray
    scores: np.ndarray
    direct: bool = True

    def picked(self, index: np.ndarray) -> "Trace":
        """The same place, with some of the channels."""
        return replace(self, source=self.source[index], scores=self.scores[index])


class Unknown(Exception):
    """The channels cannot be followed through a node."""


def sources_of(values: Sequence[ir.Value]) -> list[str]:
    """Names of everything between these values and the layers behind them, whose shapes `trace` needs."""
    result: dict[str, None] = {}
    left = [value for value in values if value is not None]
    while left:
        value = left.pop()
        node = value.producer()
        if not value.name or value.name in result or node is None or constant(value) is not None:
            continue
        result[value.name] = None
        result.update(dict.fromkeys(str(x.name) for x in node.outputs if x.name))
        if node.op_type not in CHANNELS:
            left += [x for x in node.inputs if x is not None]
    return list(result)


def trace(value: ir.Value, shapes: Shapes) -> Trace | None:
    """Where the channels of a value are; None where that cannot be told. shapes: by name, of all of `sources_of`."""
    try:
        return _Tracer(shapes).of(value)
    except Unknown:
        return None


class _Tracer:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._traces: dict[str, Trace | None] = {}
        self._depth = 0

    def of(self, value: ir.Value | None) -> Trace:
        """Raises Unknown."""
        node = value.producer() if value is not None else None
        if value is None or node is None or self._depth > DEEPEST:
            raise Unknown
        name = str(value.name)
        if name not in self._traces:
            self._depth += 1
            try:
                self._traces[name] = self._of_node(node, value)
            except Unknown:
                self._traces[name] = None
            self._depth -= 1
        if (result := self._traces[name]) is None:
            raise Unknown
        return result

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape that the value had in the run, or that of a constant. Raises Unknown."""
        if value is not None and str(value.name) in self._shapes:
            return self._shapes[str(value.name)]
        if (array := constant(value)) is not None:
            return array.shape
        raise Unknown

    def _of_node(self, node: ir.Node, value: ir.Value) -> Trace:
        if node.op_type in CHANNELS:
            axis = CHANNELS[node.op_type]
            return self._fresh(node, value, axis if axis >= 0 else axis + len(self.shape(value)))
        handler = HANDLERS.get(node.op_type, _elementwise)
        result = handler(self, node, value)
        if result.axis is not None and len(result.source) != self.shape(value)[result.axis]:
            raise Unknown
        keeps = node.op_type in KEEPS_SCORES or handler is not _elementwise
        return replace(
            result,
            scores=result.scores if keeps else np.zeros_like(result.scores),
            direct=result.direct and node.op_type in LINEAR,
        )

    def _fresh(self, node: ir.Node, value: ir.Value, axis: int) -> Trace:
        """The channels that a layer makes."""
        shape = self.shape(value)
        if not 0 <= axis < len(shape):  # the product of two vectors has no axis at all
            raise Unknown
        channels = shape[axis]
        return Trace(axis, np.full(channels, id(node)), np.zeros(channels, bool), direct=node.op_type in PRODUCTS)


def _elementwise(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    """Operators whose output has the shape of an input, or of several that are broadcast."""
    shape, result, scores = tracer.shape(value), list[Trace](), True
    activations = [x for x in node.inputs if x is not None and constant(x) is None]
    for x in activations:
        try:
            one, input_shape = tracer.of(x), tracer.shape(x)
        except Unknown:
            scores = False
            continue
        if one.axis is None or len(input_shape) > len(shape):
            continue
        axis = one.axis + len(shape) - len(input_shape)
        if shape[axis] == len(one.source):
            result.append(replace(one, axis=axis))
        else:
            scores = scores and bool(one.scores.all())
    if not result:
        raise Unknown
    first = result[0]
    if node.op_type == "Mul" and len(activations) < len(node.inputs):
        scores = False  # a factor makes any number of a probability
    marks = np.logical_and.reduce([one.scores for one in result if one.axis == first.axis]) & scores
    return replace(first, scores=marks, direct=len(activations) == 1 and first.direct)


def _sigmoid(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    result = _elementwise(tracer, node, value)
    return replace(result, scores=np.ones_like(result.scores))


def _softmax(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    """The axis of a softmax is that of the classes, whatever made them."""
    shape = tracer.shape(value)
    axis = integer(node, "axis", -1) % len(shape)
    try:
        before = tracer.of(node.inputs[0])
        direct = before.direct and before.axis == axis
    except Unknown:
        direct = False
    none = np.zeros(shape[axis], bool)
    return Trace(axis, np.full(shape[axis], id(node)), none, direct)


def _transpose(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    result = tracer.of(node.inputs[0])
    order = integers(node, "perm", list(range(len(tracer.shape(value))))[::-1])
    return result if result.axis is None else replace(result, axis=order.index(result.axis))


def _reshape(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    reshape = tracer.of(node.inputs[0])
    before, after = tracer.shape(node.inputs[0]), tracer.shape(value)
    if reshape.axis is None:
        return reshape
    old, new = _block(before, after, reshape.axis)
    channels, wide = before[reshape.axis], [axis for axis in new if after[axis] > 1]
    if channels == 1 or not wide:
        return _reshape_of_one(reshape, before, after)
    axis = wide[-1]
    if len(wide) == 1 and after[axis] == channels:
        return replace(reshape, axis=axis)
    innermost = all(before[other] == 1 for other in old if other > reshape.axis)
    if innermost and channels % after[axis] == 0:  # several anchors of one pixel, then their channels
        return replace(reshape.picked(np.arange(after[axis])), axis=axis)
    if len(wide) == 1 and not any(
        before[other] > 1 for other in old if other < reshape.axis
    ):  # places are channels, too
        return replace(reshape.picked(np.repeat(np.arange(channels), after[axis] // channels)), axis=axis)
    raise Unknown


def _reshape_of_one(single: Trace, before: Sequence[int], after: Sequence[int]) -> Trace:
    """A single channel: its axis is there, or gone."""
    assert single.axis is not None
    if len(after) == len(before):
        return single
    if len(after) > len(before):
        raise Unknown
    return replace(single, axis=None)


def _block(before: Sequence[int], after: Sequence[int], axis: int) -> tuple[list[int], list[int]]:
    """The fewest axes, of both shapes, that hold the same values and have the axis among the first."""
    i = j = 0
    while i < len(before):
        old, new = [i], [j] if j < len(after) else []
        sizes = [before[i], after[j] if j < len(after) else 1]
        i, j = i + 1, j + 1
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1] and i < len(before):
                old.append(i)
                sizes[0] *= before[i]
                i += 1
            elif j < len(after):
                new.append(j)
                sizes[1] *= after[j]
                j += 1
            else:
                raise Unknown
        if axis in old:
            return old, new
    raise Unknown


def _concat(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    rank = len(tracer.shape(value))
    along, result = integer(node, "axis", 0) % rank, list[Trace | None]()
    for x in node.inputs:
        try:
            result.append(tracer.of(x))
        except Unknown:
            result.append(None)
    axes = [one.axis for one in result if one is not None and one.axis is not None]
    if not axes:
        raise Unknown
    # Parts of one channel are as likely found along the wrong axis; most agree.
    axis = max(set(axes), key=axes.count)
    known = [one for one in result if one is not None and one.axis == axis]
    if along != axis:
        same = all(len(one.scores) == len(known[0].scores) for one in known)
        scores = np.logical_and.reduce([one.scores for one in known]) if same else np.zeros_like(known[0].scores)
        return replace(known[0], scores=scores, direct=all(one.direct for one in known))
    parts = [
        one if one is not None and one.axis == axis else _nothing(tracer.shape(x)[axis], axis)
        for one, x in zip(result, node.inputs, strict=True)
    ]
    source, scores = (np.concatenate([getattr(one, of) for one in parts]) for of in ("source", "scores"))
    return Trace(axis, source, scores, direct=False)


def _nothing(channels: int, axis: int) -> Trace:
    """Channels of which nothing is known."""
    return Trace(axis, np.zeros(channels, int), np.zeros(channels, bool), direct=False)


def _split(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    split = tracer.of(node.inputs[0])
    rank = len(tracer.shape(value))
    axis = integer(node, "axis", 0) % rank
    if axis != split.axis:
        return split
    sizes = [tracer.shape(output)[axis] for output in node.outputs]
    place = list(node.outputs).index(value)
    start = sum(sizes[:place])
    return split.picked(np.arange(start, start + sizes[place]))


def _slice(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    result = tracer.of(node.inputs[0])
    before, after = tracer.shape(node.inputs[0]), tracer.shape(value)
    if result.axis is None or before[result.axis] == after[result.axis]:
        return result
    starts, ends = constant(node.inputs[1]), constant(node.inputs[2])
    axes, steps = constant(input_of(node, 3)), constant(input_of(node, 4))
    if starts is None or ends is None:
        raise Unknown
    along = list(range(len(starts))) if axes is None else [int(axis) % len(before) for axis in axes]
    place = along.index(result.axis)
    step = 1 if steps is None else int(steps[place])
    index = np.arange(len(result.source))[int(starts[place]) : int(ends[place]) : step]
    return result.picked(index)


def _gather(tracer: _Tracer, node: ir.Node, value: ir.Value) -> Trace:
    table, index = constant(node.inputs[0]), constant(node.inputs[1])
    if table is not None:  # an embedding
        rank = len(tracer.shape(value))
        return _nothing(tracer.shape(value)[-1], rank - 1)
    gather = tracer.of(node.inputs[0])
    axis = integer(node, "axis", 0) % len(tracer.shape(node.inputs[0]))
    added = (len(tracer.shape(node.inputs[1]))) - 1
    if gather.axis is None:
        return gather
    if axis == gather.axis:
        if index is None or index.ndim > 1:
            raise Unknown
        return replace(gather, axis=None) if index.ndim == 0 else gather.picked(index)
    return replace(gather, axis=gather.axis + added if gather.axis > axis else gather.axis)


def _reduce(tracer: _Tracer, node: ir.Node, _value: ir.Value) -> Trace:
    result, before = tracer.of(node.inputs[0]), tracer.shape(node.inputs[0])
    operand = constant(input_of(node, 1))
    listed = integers(node, "axes", []) if operand is None else [int(axis) for axis in operand.ravel()]
    axes = {axis % len(before) for axis in listed} or set(range(len(before)))
    if result.axis is None or result.axis in axes:
        raise Unknown
    removed = 0 if integer(node, "keepdims", 1) else sum(axis < result.axis for axis in axes)
    scores = result.scores & (node.op_type in KEEPS_SCORES)
    return replace(result, scores=scores, axis=result.axis - removed, direct=False)


def _same_axis(tracer: _Tracer, node: ir.Node, _value: ir.Value) -> Trace:
    """Operators on planes of pixels."""
    result = tracer.of(node.inputs[0])
    return replace(result, direct=False)


HANDLERS: Mapping[str, Callable[[_Tracer, ir.Node, ir.Value], Trace]] = {
    **dict.fromkeys(named(Trait.SIGMOID), _sigmoid),
    **dict.fromkeys(named(Trait.SOFTMAX), _softmax),
    **dict.fromkeys(named(Trait.RESHAPES), _reshape),
    **dict.fromkeys(named(Trait.REDUCES), _reduce),
    **dict.fromkeys(named(Trait.PLANES), _same_axis),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
}
