"""Which channels of tensors and constants have one order, or one scale, so that a network stays the same function.

A walk through the graph gives every tensor an array of numbers (`ptqc.ir.channel_sets`), of its rank, with size 1
along axes that nothing is moved along: (1, C, 1, 1) behind a convolution, (1, 1, C) behind a product of rank 3,
(1, heads, 1, d) within attention. What an operator does to places it does to their numbers; what adds or multiplies
places joins their numbers; constants get the numbers of what they meet. Whatever is not known to keep the function
stays as it is, as do inputs and outputs of the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.ir.channel_sets import FIXED, ChannelSets
from ptqc.ir.nodes import constant

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
        found = np.asarray(source.ravel()[places])
        self.sets.trace_taken(found, source, places)
        return self.narrowed(found)

    def spread(self, source: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Numbers with others along axes of size 1, each for itself, before something else is done to them."""
        if source.shape == tuple(shape):
            return source
        places = np.broadcast_to(np.arange(source.size).reshape(source.shape), shape)
        found = np.asarray(source.ravel()[places])
        self.sets.trace_taken(found, source, places)
        return found

    def narrowed(self, numbers: np.ndarray) -> np.ndarray:
        """The same with size 1 along axes that nothing is moved along."""
        numbers, found = self.sets.roots(numbers), self.sets.roots(numbers)
        for axis in range(found.ndim):
            if (found == found.take([0], axis)).all():
                found = found.take([0], axis)
        if found.shape != numbers.shape:
            self.spread(found, numbers.shape)
        return found

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
