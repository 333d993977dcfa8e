"""Numbers that are joined to sets, and which of these sets can change places.

Every tensor has an array of numbers, one for each place that is moved for itself (see `ptqc.ir.channels`). Places
with numbers of one set move together. Two sets can change places where each tensor has equally many places of both, and
the operators between tensors lead from the k-th place of one to the same place as from the k-th of the other. Each
operator therefore leaves traces: the numbers of a tensor, in the order of its places, with a value for each. Sets with
the same values in every trace form a class, within which any order computes the same.
"""

from dataclasses import dataclass

import numpy as np

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
        found = self._parent[numbers]
        while not np.array_equal(higher := self._parent[found], found):
            found = higher
        return np.asarray(found)

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
        found = [known.setdefault(tuple(mark), len(known)) for mark in marks]
        return sets, np.where(least == FIXED, -1, found)

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
    found, starts = np.unique(sets[order], return_index=True)
    for number, part in zip(found.tolist(), np.split(values[order].astype(np.int64), starts[1:]), strict=True):
        marks[number] += (place, hash(part.tobytes()))


def turns(sets: np.ndarray) -> np.ndarray:
    """Of each place, how many earlier ones are of the same set."""
    order = np.argsort(sets, kind="stable")
    _, starts, counts = np.unique(sets[order], return_index=True, return_counts=True)
    found = np.empty(len(sets), np.int64)
    found[order] = np.arange(len(sets)) - np.repeat(starts, counts)
    return found


def moved(sets: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which place to take the content of each place from, where set s gets the places of set other[s].

    sets: (places,); other: (sets,). The k-th place of a set goes to the k-th of the other.
    """
    size, turn = len(sets) + 1, turns(sets)
    key, wanted = sets * size + turn, other[sets] * size + turn
    order = np.argsort(key)
    return np.asarray(order[np.searchsorted(key[order], wanted)])
