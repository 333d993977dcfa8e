"""Sequences whose items are computed each time that they are read, so that nobody holds all of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

Item = TypeVar("Item", covariant=True)


class Lazy(Sequence[Item], Generic[Item]):
    """item: computes the item of an index; count: how many there are."""

    def __init__(self, item: Callable[[int], Item], count: int) -> None:
        self._item, self._count = item, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "Lazy[Item]": ...
    def __getitem__(self, index: int | slice) -> "Item | Lazy[Item]":
        places = range(self._count)[index]
        if isinstance(places, range):
            return Lazy(lambda place: self._item(places[place]), len(places))
        return self._item(places)

    def __iter__(self) -> Iterator[Item]:
        return (self._item(place) for place in range(self._count))
