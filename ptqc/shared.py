"""One stream of items for several threads, each of which reads all of it at its own pace."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_END: Any = object()


class Shared(Generic[Item]):
    """Items that one thread makes and all readers get; each is let go of when the last one had it.

    lead: how many items there may be that the last reader has not had.
    """

    def __init__(self, readers: int, lead: int = 1) -> None:
        self._lead = lead
        self._made = 0
        self._taken = [0] * readers
        self._held: dict[int, Item] = {}
        self._error: BaseException | None = None
        self._changed = Condition()

    def fill(self, items: Iterable[Item]) -> None:
        """Make the items, none too early; in a thread of its own."""
        with self._ending_all():
            for item in items:
                self._put(item)
            self._put(_END)

    @contextmanager
    def reading(self, reader: int) -> Iterator[Iterator[Item]]:
        """The stream as one reader sees it. Who leaves by an error ends all the others by the same one."""
        with self._ending_all():
            yield self._read(reader)

    def stop(self, error: BaseException) -> None:
        """Raise an error in everybody who makes or wants another item."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.stop(error)
            raise

    def _put(self, item: Item) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._made - min(self._taken) < self._lead)
            if self._error is not None:
                raise self._error
            self._held[self._made] = item
            self._made += 1
            self._changed.notify_all()

    def _read(self, reader: int) -> Iterator[Item]:
        while (item := self._take(reader)) is not _END:
            yield item

    def _take(self, reader: int) -> Item:
        number = self._taken[reader]
        with self._changed:
            self._changed.wait_for(lambda: self._error or number < self._made)
            if self._error is not None:
                raise self._error
            self._taken[reader] += 1
            self._changed.notify_all()
            return self._held[number] if min(self._taken) <= number else self._held.pop(number)
