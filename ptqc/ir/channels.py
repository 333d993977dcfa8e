"""Which channels of tensors and constants have one order, or one scale, so that a network stays the same function.

A walk through the graph gives every tensor an array of numbers, of its rank, with size 1
along axes that nothing is moved along: (1, C, 1, 1) behind a convolution, (1, 1, C) behind a product of rank 3,
(1, heads, 1, d) within attention. What an operator does to places it does to their numbers; what adds or multiplies
places joins their numbers; constants get the numbers of what they meet. Whatever is not known to keep the function
stays as it is, as do inputs and outputs of the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import constant, input_of, integer, integers
from ptqc.ir.operators import Trait, named

# Numbers that are joined to sets, and which of these sets can change places.
#
# Every tensor has an array of numbers, one for each place that is moved for itself. Places
# with numbers of one set move together. Two sets can change places where each tensor has equally many places of both,
# and the operators between tensors lead from the k-th place of one to the same place as from the k-th of the other.
# Each operator therefore leaves traces: the numbers of a tensor, in the order of its places, with a value for each.
# Sets with the same values in every trace form a class, within which any order computes the same.

# The number of everything that stays where it is.
FIXED = 0


@dataclass(frozen=True, eq=False)
class _Trace:
    """Numbers with a value each: as given, or, of a tensor that they were taken from, its places.

    source: the numbers of that tensor; of its place i counts how many earlier ones are of the same set.
    """

    numbers: np.ndarray
    values: np.ndarray
    source: np.ndarray | None


class ChannelSets:
    """A union-find over numbers, and the traces that operators leave."""

    def __init__(self) -> None:
        self._parent = np.zeros(1, np.int64)
        self._traces: list[_Trace] = []

    def fresh(self, *shape: int) -> np.ndarray:
        """New numbers, each a set of its own."""
        first, count = len(self._parent), int(np.prod(shape))
        self._parent = np.concatenate([self._parent, np.arange(first, first + count)])
        numbers = np.arange(first, first + count).reshape(shape)
        self.trace(numbers, np.zeros_like(numbers))
        return numbers

    def join(self, some: np.ndarray, others: np.ndarray) -> None:
        """Join numbers of the same shape, place by place."""
        pairs = np.stack([self.roots(some).ravel(), self.roots(others).ravel()])
        for one, other in np.unique(pairs[:, pairs[0] != pairs[1]], axis=1).T.tolist():
            first, second = sorted((self._root(one), self._root(other)))
            self._parent[second] = first

    def fix(self, numbers: np.ndarray) -> None:
        """These stay where they are."""
        self.join(numbers, np.full_like(numbers, FIXED))

    def roots(self, numbers: np.ndarray) -> np.ndarray:
        """The least number of the set of each."""
        result = self._parent[numbers]
        while not np.array_equal(higher := self._parent[result], result):
            result = higher
        return np.asarray(result)

    def trace(self, numbers: np.ndarray, values: np.ndarray) -> None:
        """Numbers with different values cannot change places, nor those with unlike many."""
        self._traces.append(_Trace(numbers.ravel(), values.ravel(), None))

    def trace_taken(self, numbers: np.ndarray, source: np.ndarray, places: np.ndarray) -> None:
        """The same for the places, counted in its flat order, that they were taken from."""
        self._traces.append(_Trace(numbers.ravel(), places.ravel(), source.ravel()))

    def classes(self) -> tuple[np.ndarray, np.ndarray]:
        """The set of each number, numbered from 0, and the class of each set: -1 for the fixed ones."""
        least, sets = np.unique(self.roots(np.arange(len(self._parent))), return_inverse=True)
        marks: list[list[int]] = [[] for _ in least]
        for place, trace in enumerate(self._traces):
            _mark(marks, place, sets[trace.numbers], _values(trace, sets))
        known: dict[tuple[int, ...], int] = {}
        result = [known.setdefault(tuple(mark), len(known)) for mark in marks]
        return sets, np.where(least == FIXED, -1, result)

    def _root(self, number: int) -> int:
        while (higher := int(self._parent[number])) != number:
            self._parent[number] = self._parent[higher]
            number = higher
        return number


def _values(trace: _Trace, sets: np.ndarray) -> np.ndarray:
    return trace.values if trace.source is None else turns(sets[trace.source])[trace.values]


def _mark(marks: list[list[int]], place: int, sets: np.ndarray, values: np.ndarray) -> None:
    """Append to each set what a trace says of it."""
    if not len(sets):  # np.split would give one part
        return
    order = np.argsort(sets, kind="stable")
    result, starts = np.unique(sets[order], return_index=True)
    for number, part in zip(result.tolist(), np.split(values[order].astype(np.int64), starts[1:]), strict=True):
        marks[number] += (place, hash(part.tobytes()))


def turns(sets: np.ndarray) -> np.ndarray:
    """Of each place, how many earlier ones are of the same set."""
    order = np.argsort(sets, kind="stable")
    _, starts, counts = np.unique(sets[order], return_index=True, return_counts=True)
    result = np.empty(len(sets), np.int64)
    result[order] = np.arange(len(sets)) - np.repeat(starts, counts)
    return result


def moved(sets: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which place to take the content of each place from, where set s gets the places of set other[s].

    sets: (places,); other: (sets,). The k-th place of a set goes to the k-th of the other.
    """
    size, turn = len(sets) + 1, turns(sets)
    key, wanted = sets * size + turn, other[sets] * size + turn
    order = np.argsort(key)
    return np.asarray(order[np.searchsorted(key[order], wanted)])


Shapes = Mapping[str, Sequence[int]]
# A constant with more elements than this is left as it is where each may get a number of its own.
MOST_PLACES = 2**22


@dataclass(frozen=True, eq=False)
class Factor:
    """Axes of a constant whose places are moved together.

    axes: of the role's view. numbers: one for each place, in their order. power: a constant that meets channels which
    carry k times their values has to be multiplied by k to this power.
    """

    axes: tuple[int, ...]
    numbers: np.ndarray
    power: int = 1


@dataclass(frozen=True, eq=False)
class Role:
    """How a constant takes part. view: the shape that its axes are counted in."""

    view: tuple[int, ...]
    factors: tuple[Factor, ...]

    @property
    def kind(self) -> tuple[object, ...]:
        """What has to be the same wherever a constant is used."""
        return self.view, *((factor.axes, factor.power) for factor in self.factors)


@dataclass(frozen=True, eq=False)
class ChannelTies:
    """Sets of channels, numbered from 0.

    tensors: by name, the set of each place, with size 1 along the axes that do not matter. constants: by name; their
    numbers are sets. classes: of each set; those of one class can change places, -1 stay.
    """

    tensors: Mapping[str, np.ndarray]
    constants: Mapping[str, Role]
    classes: np.ndarray

    @property
    def fixed(self) -> np.ndarray:
        """Which sets stay as they are."""
        return np.asarray(self.classes < 0)

    def groups(self) -> list[np.ndarray]:
        """The sets that are not fixed, by tensors in which they lie together, or with others that they do."""
        joined = ChannelSets()
        numbers = joined.fresh(len(self.classes))
        for sets in self.tensors.values():
            free = np.unique(sets[~self.fixed[sets]])
            joined.join(numbers[free[1:]], np.broadcast_to(numbers[free[:1]], free[1:].shape))
        roots = joined.roots(numbers)
        free = ~self.fixed
        return [np.flatnonzero((roots == root) & free) for root in np.unique(roots[free])]


class TieWalk:
    """A walk through the graph that numbers the places of every tensor that it can follow.

    shapes: of all activations, for one sample. rules: by operator, what gives the numbers of a node's outputs.
    """

    def __init__(self, model: ir.Model, shapes: Shapes, rules: "Mapping[str, Rule]") -> None:
        self.sets, self.roles = ChannelSets(), dict[str, Role]()
        self.tensors: dict[str, np.ndarray] = {}
        self._model, self._shapes = model, shapes
        for node in model.graph:
            rule = rules.get(node.op_type) if not node.domain and not self._is_empty(node) else None
            outputs = None if rule is None else rule(self, node)
            if outputs is None or any(value.uses() for value in node.outputs[len(outputs) :]):
                self.keep(*node.inputs)
            for value, numbers in zip(node.outputs, outputs or (), strict=False):
                if (self.sets.roots(numbers) != FIXED).any():
                    self.tensors[str(value.name)] = numbers
        self.keep(*model.graph.outputs, *_read_within_subgraphs(model))

    def _is_empty(self, node: ir.Node) -> bool:
        """Whether anything that a node reads or makes has no elements, so that there is nothing to follow."""
        data = [value for value in (*node.inputs[:1], *node.outputs) if value is not None and value.name]
        return any(0 in self.shape(value) for value in data)

    def ties(self) -> ChannelTies:
        """What was found."""
        sets, classes = self.sets.classes()
        roles = {
            name: replace(role, factors=tuple(replace(x, numbers=sets[x.numbers]) for x in role.factors))
            for name, role in self.roles.items()
        }
        return ChannelTies({name: sets[numbers] for name, numbers in self.tensors.items()}, roles, classes)

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """Sizes of an activation or of a constant."""
        name = "" if value is None else str(value.name)
        if name in self._shapes:
            return tuple(self._shapes[name])
        array = constant(value)
        return () if array is None else array.shape

    def numbers(self, value: ir.Value | None) -> np.ndarray:
        """Those of an activation; fixed where nothing is known of it. A constant that is asked for stays as it is."""
        name = "" if value is None else str(value.name)
        if name in self._model.graph.initializers:
            self.keep(value)
        return self.sets.roots(self.tensors.get(name, np.full((1,) * len(self.shape(value)), FIXED)))

    def keep(self, *values: ir.Value | None) -> None:
        """These stay as they are."""
        for value in values:
            if value is not None and value.name in self._model.graph.initializers:
                self.take(value, Role(self.shape(value), ()))
            elif value is not None and value.name in self.tensors:
                self.sets.fix(self.tensors[value.name])

    def take(self, value: ir.Value, role: Role) -> None:
        """Let a constant take part. Used in two unlike ways it stays as it is, as does one of a subgraph."""
        name = str(value.name)
        known = self.roles.get(name)
        if name not in self._model.graph.initializers or value.is_graph_output():
            known = Role((), ())
        if known is None:
            self.roles[name] = role
        elif known.kind == role.kind:
            for one, other in zip(known.factors, role.factors, strict=True):
                self.sets.join(one.numbers, other.numbers)
        else:
            for factor in (*known.factors, *role.factors):
                self.sets.fix(factor.numbers)
            self.roles[name] = replace(known, factors=())

    def taken(self, source: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Numbers of an output that has the places of its input, counted in the flat order of `source`, elsewhere."""
        result = np.asarray(source.ravel()[places])
        self.sets.trace_taken(result, source, places)
        return self.narrowed(result)

    def spread(self, source: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Numbers with others along axes of size 1, each for itself, before something else is done to them."""
        if source.shape == tuple(shape):
            return source
        places = np.broadcast_to(np.arange(source.size).reshape(source.shape), shape)
        spread = np.asarray(source.ravel()[places])
        self.sets.trace_taken(spread, source, places)
        return spread

    def narrowed(self, numbers: np.ndarray) -> np.ndarray:
        """The same with size 1 along axes that nothing is moved along."""
        numbers, result = self.sets.roots(numbers), self.sets.roots(numbers)
        for axis in range(result.ndim):
            if (result == result.take([0], axis)).all():
                result = result.take([0], axis)
        if result.shape != numbers.shape:
            self.spread(result, numbers.shape)
        return result

    def trace_axes(self, numbers: np.ndarray, axes: Sequence[int]) -> None:
        """Numbers cannot change places along these axes."""
        sizes = [numbers.shape[axis] if axis in axes else 1 for axis in range(numbers.ndim)]
        self.sets.trace(numbers, np.broadcast_to(np.arange(int(np.prod(sizes))).reshape(sizes), numbers.shape))


# The numbers of each output of a node; None where nothing is known, and everything that it reads stays as it is.
Rule = Callable[[TieWalk, ir.Node], Sequence[np.ndarray] | None]


def along(numbers: np.ndarray, axis: int, size: int) -> np.ndarray | None:
    """The numbers along an axis (size,), None where places are moved along others too."""
    others = tuple(place for place in range(numbers.ndim) if place != axis % numbers.ndim)
    if any(numbers.shape[place] > 1 for place in others):
        return None
    return np.array(np.broadcast_to(numbers.ravel(), (size,)))


def placed(numbers: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Numbers (size,) of a tensor along one of its axes."""
    return numbers.reshape([-1 if place == axis % rank else 1 for place in range(rank)])


def _read_within_subgraphs(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graph.subgraphs():
        for node in graph:
            yield from (value for value in node.inputs if value is not None)


def find_ties(model: ir.Model, shapes: Shapes, rules: Mapping[str, Rule]) -> ChannelTies:
    """The sets of a model in normal form. shapes: of its activations, for one sample; rules: by what they are tied."""
    return TieWalk(model, shapes, rules).ties()


# How operators that move, select, repeat and join values lead the places of channels on.

Numbers = Sequence[np.ndarray] | None


def reshaped(walk: TieWalk, node: ir.Node) -> Numbers:
    """Axes that are joined or cut, each group of them for itself."""
    walk.keep(*node.inputs[1:])
    before, after = walk.shape(node.inputs[0]), walk.shape(node.outputs[0])
    numbers = walk.numbers(node.inputs[0])
    full, sizes = list[int](), list[int]()
    for old, new in axis_groups(before, after):
        is_moved = any(numbers.shape[axis] > 1 for axis in old)
        full += [before[axis] if is_moved else 1 for axis in old]
        sizes += [after[axis] if is_moved else 1 for axis in new]
    return [walk.narrowed(walk.spread(numbers, full).reshape(sizes))]


def axis_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes of two shapes of one tensor, in the smallest groups that have the same elements."""
    groups: list[tuple[list[int], list[int]]] = []
    old, new = [list[int](), list[int]()]
    one = other = 1
    i = j = 0
    while i < len(before) or j < len(after):
        if j == len(after) or (i < len(before) and one <= other):
            one, i = one * before[i], i + 1
            old.append(i - 1)
        else:
            other, j = other * after[j], j + 1
            new.append(j - 1)
        if one == other and old and new:
            groups.append((old, new))
            old, new, one, other = [], [], 1, 1
    if old or new:  # axes of size 1 at the end, of one shape alone
        last = groups.pop() if groups else ([], [])
        groups.append((last[0] + old, last[1] + new))
    return groups


def transposed(walk: TieWalk, node: ir.Node) -> Numbers:
    """Axes in another order."""
    numbers = walk.numbers(node.inputs[0])
    order = integers(node, "perm", range(numbers.ndim)[::-1])
    return [walk.taken(numbers, _places(numbers).transpose(order))]


def sliced(walk: TieWalk, node: ir.Node) -> Numbers:
    """Parts along some axes."""
    numbers, result = walk.numbers(node.inputs[0]), [constant(value) for value in node.inputs[1:]]
    shape = walk.shape(node.inputs[0])
    starts, ends, axes, steps = [None if x is None else x.tolist() for x in [*result, None, None][:4]]
    if axes is None and input_of(node, 3) is None and starts is not None:
        axes = list(range(len(starts)))
    if axes is None:
        return None
    index = [slice(None)] * numbers.ndim
    for turn, axis in enumerate(x % numbers.ndim for x in axes):
        if numbers.shape[axis] == 1 and shape[axis] > 1:
            continue  # nothing is moved along it
        if starts is None or ends is None or (steps is None and input_of(node, 4) is not None):
            return None
        index[axis] = _part(starts[turn], ends[turn], 1 if steps is None else steps[turn])
    return [walk.taken(numbers, _places(numbers)[tuple(index)])]


def _part(start: int, end: int, step: int) -> slice:
    """A slice of ONNX, whose end beyond the first element is a large negative number."""
    return slice(start, None if step < 0 and end < -(2**30) else end, step)


def split(walk: TieWalk, node: ir.Node) -> Numbers:
    """Parts one after the other."""
    numbers = walk.numbers(node.inputs[0])
    axis = integer(node, "axis", 0) % numbers.ndim
    if numbers.shape[axis] == 1:
        return [numbers for _ in node.outputs]
    ends = np.cumsum([walk.shape(value)[axis] for value in node.outputs])
    return [walk.taken(numbers, places) for places in np.split(_places(numbers), ends[:-1], axis)]


def gathered(walk: TieWalk, node: ir.Node) -> Numbers:
    """Places by constant indices, or rows of a constant table."""
    table, indices = node.inputs
    rank, places = len(walk.shape(table)), constant(indices)
    axis = integer(node, "axis", 0) % rank
    if constant(table) is not None:
        return None if places is not None or table is None else _looked_up(walk, node, table, axis)
    numbers = walk.numbers(table)
    if numbers.shape[axis] == 1:
        walk.keep(indices)
        ones = (1,) * len(walk.shape(indices))
        return [numbers.reshape((*numbers.shape[:axis], *ones, *numbers.shape[axis + 1 :]))]
    return None if places is None else [walk.taken(numbers, _places(numbers).take(places, axis))]


def _looked_up(walk: TieWalk, node: ir.Node, table: ir.Value, axis: int) -> Numbers:
    shape = walk.shape(table)
    if axis != 0 or len(shape) != 2:
        return None
    walk.keep(node.inputs[1])
    result = walk.sets.fresh(shape[1])
    walk.take(table, Role(shape, (Factor((1,), result),)))
    return [result.reshape((*(1,) * len(walk.shape(node.inputs[1])), -1))]


def joined(walk: TieWalk, node: ir.Node) -> Numbers:
    """Concat: places behind each other, or, where none are moved along that axis, joined."""
    parts = [walk.numbers(value) for value in node.inputs]
    shapes = [walk.shape(value) for value in node.inputs]
    rank = len(shapes[0])
    axis = integer(node, "axis", 0) % rank
    wide = list(np.broadcast_shapes(*(x.shape[:axis] + x.shape[axis + 1 :] for x in parts)))
    is_moved = any(x.shape[axis] > 1 for x in parts)
    spread = [
        walk.spread(x, (*wide[:axis], shape[axis] if is_moved else 1, *wide[axis:]))
        for x, shape in zip(parts, shapes, strict=True)
    ]
    if not is_moved:
        for other in spread[1:]:
            walk.sets.join(spread[0], other)
        return [walk.narrowed(spread[0])]
    result = np.concatenate(spread, axis)
    _trace_parts(walk, result, spread, axis)
    return [walk.narrowed(result)]


def _trace_parts(walk: TieWalk, array: np.ndarray, parts: Sequence[np.ndarray], axis: int) -> None:
    """Which place of which part each is."""
    source = np.concatenate([part.ravel() for part in parts])
    starts = np.cumsum([0, *(part.size for part in parts)])
    places = [start + _places(part) for start, part in zip(starts, parts, strict=False)]
    walk.sets.trace(array, np.concatenate([np.full(x.shape, i) for i, x in enumerate(parts)], axis))
    walk.sets.trace_taken(array, source, np.concatenate(places, axis))


def expanded(walk: TieWalk, node: ir.Node) -> Numbers:
    """Repeated along axes of size 1."""
    walk.keep(*node.inputs[1:])
    numbers, rank = walk.numbers(node.inputs[0]), len(walk.shape(node.outputs[0]))
    return [numbers.reshape((*(1,) * (rank - numbers.ndim), *numbers.shape))]


def padded(walk: TieWalk, node: ir.Node) -> Numbers:
    """With more places along axes that nothing is moved along."""
    numbers = walk.numbers(node.inputs[0])
    walk.keep(*node.inputs[1:])
    before, after = walk.shape(node.inputs[0]), walk.shape(node.outputs[0])
    is_moved = any(size > 1 and a != b for size, a, b in zip(numbers.shape, before, after, strict=True))
    return None if is_moved else [numbers]


def measured(walk: TieWalk, node: ir.Node) -> Numbers:
    """What depends on sizes alone."""
    return [np.zeros((1,) * len(walk.shape(node.outputs[0])), np.int64)]


def _places(numbers: np.ndarray) -> np.ndarray:
    return np.arange(numbers.size).reshape(numbers.shape)


MOVES: Mapping[str, Rule] = {
    **dict.fromkeys(named(Trait.RESHAPES), reshaped),
    **dict.fromkeys(named(Trait.MEASURES), measured),
    "Transpose": transposed,
    "Slice": sliced,
    "Split": split,
    "Gather": gathered,
    "Concat": joined,
    "Expand": expanded,
    "Pad": padded,
}
