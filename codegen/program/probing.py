"""Which axes of a model's inputs vary, and how the sizes of all values follow from theirs: found by running it.

Axes that the file declares open and gives one name are of one size. Such a group varies alone, or together with another
one, as the columns of a mask do with the words and with the cache before them: what ONNX Runtime runs is what is so.
Sizes of values are then fitted as sums of the lengths of several runs, and further runs must agree.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import onnx_ir as ir

from ptqc.codegen.program.inputs import resized
from ptqc.errors import NoKernel
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.nodes import has_open_first_axis
from ptqc.runtime.lengths import Size, SymDim, SymExpr, at, names_of, size_of

Lengths = Mapping[str, int]
Sizes = Mapping[str, tuple[int, ...]]
# Below this, sizes are varied upwards.
SHORT = 4


@dataclass(frozen=True)
class OpenAxes:
    """Axes of one size. name: of their length. places: names of inputs, and which axis of each."""

    name: str
    places: tuple[tuple[str, int], ...]

    def size(self, feeds: Feeds) -> int | None:
        """Their size; None where they differ."""
        results = {feeds[name].shape[axis] for name, axis in self.places}
        return next(iter(results)) if len(results) == 1 else None


def open_axes(model: ir.Model, samples: Sequence[Feeds]) -> list[OpenAxes]:
    """Groups of axes that a model leaves open, but for its batch and for those of size 1 in all samples.

    One element is one step of a model that goes on from a cache, for which there are better kernels.
    """
    groups: dict[str, list[tuple[str, int]]] = {}
    first = int(has_batch(model, samples))
    for value in model.graph.inputs:
        for axis, size in enumerate(value.shape or ()):
            if axis >= first and not isinstance(size, int):
                groups.setdefault(str(size), []).append((str(value.name), axis))
    names = _identifiers(groups)
    results = [OpenAxes(names[symbol], tuple(places)) for symbol, places in groups.items()]
    sizes = {group.name: {group.size(feeds) for feeds in samples} for group in results}
    return [group for group in results if sizes[group.name] - {0, 1} and None not in sizes[group.name]]


def has_batch(model: ir.Model, samples: Sequence[Feeds]) -> bool:
    """Whether the first axis of all inputs is open, and of one size in each sample."""
    sizes = [{array.shape[:1] for array in feeds.values()} for feeds in samples]
    return all(map(has_open_first_axis, model.graph.inputs)) and all(len(result) == 1 for result in sizes)


def longest_first(model: ir.Model, samples: Sequence[Feeds]) -> list[Feeds]:
    """Samples, one in front whose shortest open axis is the longest: others may lack a cache, or a second word."""
    groups = open_axes(model, samples)
    first = max(samples, key=lambda feeds: min((group.size(feeds) or 0 for group in groups), default=0))
    return [first, *(feeds for feeds in samples if feeds is not first)]


def _identifiers(symbols: Mapping[str, object]) -> dict[str, str]:
    """Names that sizes can be written with."""
    outputs: dict[str, str] = {}
    for symbol in symbols:
        name = re.sub(r"[^A-Za-z0-9]", "_", symbol).strip("_") or "length"
        name = name if name[0].isalpha() else f"n{name}"
        while name in outputs.values():
            name += "_"
        outputs[symbol] = name
    return outputs


@dataclass(frozen=True)
class Probe:
    """Runs of a model with inputs of other sizes. sizes_of: shapes of all values for inputs."""

    feeds: Feeds
    groups: Sequence[OpenAxes]
    sizes_of: Any

    def attempt(self, changes: Mapping[str, int]) -> Sizes | None:
        """All shapes where groups are larger by so many elements; None where ONNX Runtime refuses that."""
        with suppress(Exception):
            return dict(self.sizes_of(self.resized(changes)))
        return None

    def resized(self, changes: Mapping[str, int]) -> Feeds:
        """The inputs where groups are larger by so many elements."""
        shapes = {name: list(value.shape) for name, value in self.feeds.items()}
        for group in self.groups:
            for name, axis in group.places:
                shapes[name][axis] += changes.get(group.name, 0)
        return {name: resized(value, shapes[name]) for name, value in self.feeds.items()}


@dataclass(frozen=True)
class Direction:
    """A length, and the groups that grow with it."""

    length: SymDim
    groups: tuple[str, ...]

    @property
    def step(self) -> int:
        """By how many elements it is varied."""
        return -1 if self.length.seen >= SHORT else 1

    def changes(self, steps: int) -> dict[str, int]:
        """How its groups change in so many steps."""
        return dict.fromkeys(self.groups, steps * self.step)


def directions(probe: Probe) -> list[Direction]:
    """What may vary on its own: a group, or several together where one alone is refused."""
    results: list[Direction] = []
    for group in probe.groups:
        direction = _direction(probe, group)
        if direction is not None and set(direction.groups) not in [set(other.groups) for other in results]:
            results.append(direction)
    counts = {group.name: sum(group.name in direction.groups for direction in results) for group in probe.groups}
    return [direction for direction in results if counts[direction.length.name] == 1]


def _direction(probe: Probe, group: OpenAxes) -> Direction | None:
    """The smallest set of groups that may grow and shrink; or, at the end of what a model takes, one that may shrink.

    A mask that is too long may be taken where one that is too short is not.
    """
    size = group.size(probe.feeds)
    assert size is not None
    first = None
    for one in _candidates(probe, group, size):
        if probe.attempt(one.changes(1)) is None:
            continue
        if size == 1 or probe.attempt(one.changes(-1)) is not None:
            return one
        first = first or one
    return first


def _candidates(probe: Probe, group: OpenAxes, size: int) -> Iterator[Direction]:
    """Sets of groups that may have to vary together with one, the smallest first."""
    remaining = [other for other in probe.groups if other is not group]
    equal = tuple(other.name for other in remaining if other.size(probe.feeds) == size)
    remainder = [other.name for other in remaining if other.name not in equal]
    sets = [
        (),
        equal,
        *((name,) for name in (*equal, *remainder)),
        *((*equal, name) for name in remainder),
        (*equal, *remainder),
    ]
    for names in dict.fromkeys(sets):
        yield Direction(SymDim(group.name, size), (group.name, *names))


@dataclass(frozen=True)
class Varied:
    """How a model varies. shapes: of all values, by the lengths. points: lengths of the runs, those of the first sample
    in front. runs: inputs of such sizes.
    """

    lengths: tuple[SymDim, ...]
    shapes: Mapping[str, tuple[Any, ...]]
    points: tuple[Lengths, ...]

    def starting_at_none(self, empty: Sequence[Direction]) -> Self:
        """The same where the lengths of some directions may be 0."""
        names = {direction.length.name for direction in empty}
        return replace(self, lengths=tuple(replace(e, least=0) if e.name in names else e for e in self.lengths))


def varied(probe: Probe, is_fixed: Any, may_be_empty: Callable[[Collection[str]], bool]) -> Varied:
    """Fit the sizes of all values. is_fixed: gives the lengths that cannot vary, of all shapes.

    may_be_empty: whether these values may be without elements. Raises NoKernel where nothing varies.
    """
    chosen = directions(probe)
    while chosen:
        result, refused = _fitted(probe, chosen)
        refused = refused or set(is_fixed(result.shapes))
        if not refused:
            result = _with_least(result)
            empty = [each for each in chosen if _is_right_without(probe, each, result, may_be_empty)]
            return result.starting_at_none(empty)
        chosen = [direction for direction in chosen if direction.length.name not in refused]
    raise NoKernel("no axis that the model leaves open can vary in it")


def _fitted(probe: Probe, chosen: Sequence[Direction]) -> tuple[Varied, set[str]]:
    """Sizes as sums of lengths; names of the lengths whose sizes are none."""
    steps = _steps(len(chosen))
    seen: list[Sizes] = []
    for taken in steps:
        changes: dict[str, int] = {}
        for direction, count in zip(chosen, taken, strict=True):
            for name, change in direction.changes(count).items():
                changes[name] = changes.get(name, 0) + change
        sizes = probe.attempt(changes)
        moved = [d.length.name for d, count in zip(chosen, taken, strict=True) if count]
        if sizes is None or any(len(sizes[name]) != len(shape) for name, shape in (seen or [sizes])[0].items()):
            return Varied((), {}, ()), set(moved[-1:] or [chosen[0].length.name])
        seen.append(sizes)
    points = tuple(
        {d.length.name: d.length.seen + count * d.step for d, count in zip(chosen, taken, strict=True)}
        for taken in steps
    )
    shapes, refused = {}, set[str]()
    for name, shape in seen[0].items():
        fitted = [fit(points, [sizes[name][axis] for sizes in seen]) for axis in range(len(shape))]
        if any(size is None or _shrinks(size) for size in fitted):
            refused.add(_to_blame(chosen, [sizes[name] for sizes in seen]))
        shapes[name] = tuple(fitted)
    return Varied(tuple(direction.length for direction in chosen), shapes, points), refused


def _shrinks(size: Size) -> bool:
    """Whether it gets smaller where a length gets larger."""
    return isinstance(size, SymExpr) and any(factor < 0 for product, factor in size.terms if product)


def _steps(count: int) -> list[tuple[int, ...]]:
    """Steps of each direction, run by run: none, each alone, each alone twice, and several together."""
    alone = [tuple(steps if i == place else 0 for i in range(count)) for steps in (1, 2) for place in range(count)]
    together = [tuple(1 + (i + turn) % 2 for i in range(count)) for turn in range(2)] if count > 1 else [(3,)]
    return [(0,) * count, *alone, *together]


def fit(points: Sequence[Lengths], sizes: Sequence[int]) -> Any:
    """The sum of lengths that is these sizes at these points; None where there is none.

    points: one, then others where one length after the other differs from that, then any.
    """
    base, terms = points[0], dict[tuple[str, ...], int]()
    for place, name in enumerate(base, 1):
        factor, remainder = divmod(sizes[place] - sizes[0], points[place][name] - base[name])
        if remainder:
            return None
        terms[name,] = factor
    terms[()] = sizes[0] - sum(factor * base[name] for (name,), factor in terms.items())
    result = size_of(terms)
    return result if all(at(result, point) == size for point, size in zip(points, sizes, strict=True)) else None


def _to_blame(chosen: Sequence[Direction], shapes: Sequence[tuple[int, ...]]) -> str:
    """The first length that alone does not change the sizes evenly; the last one where they all do."""
    count = len(chosen)
    for place, direction in enumerate(chosen, 1):
        none, one, two = (shapes[index] for index in (0, place, place + count))
        if any(2 * b - a != c for a, b, c in zip(none, one, two, strict=True)):
            return direction.length.name
    return chosen[-1].length.name


def _is_right_without(
    probe: Probe, direction: Direction, result: Varied, may_be_empty: Callable[[Collection[str]], bool]
) -> bool:
    """Whether a model does without elements along an axis, as without a cache yet, and all sizes are as they follow."""
    length = direction.length
    none = dict.fromkeys(direction.groups, -length.seen)
    lengths = {**result.points[0], length.name: 0}
    shapes = {name: tuple(at(size, lengths) for size in shape) for name, shape in result.shapes.items()}
    empty = [name for name, shape in shapes.items() if 0 in shape]
    return may_be_empty(empty) and probe.attempt(none) == shapes


def _with_least(result: Varied) -> Varied:
    """With the least that lengths may be so that no value is without elements."""
    least = dict.fromkeys((length.name for length in result.lengths), 1)
    for size in {size for shape in result.shapes.values() for size in shape if isinstance(size, SymExpr)}:
        terms = dict(size.terms)
        for name in names_of([size]):
            factor = terms.get((name,), 0)
            remaining = sum(number for product, number in terms.items() if product and product != (name,))
            if factor > 0:
                least[name] = max(least[name], -(-(1 - terms.get((), 0) - max(remaining, 0)) // factor))
    lengths = tuple(SymDim(each.name, each.seen, least[each.name]) for each in result.lengths)
    return Varied(lengths, result.shapes, result.points)
