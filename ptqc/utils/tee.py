"""One stream of items for several threads, each of which reads all of it at its own pace."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_END: Any = object()


class StreamStopped(Exception):
    """Somebody else left the stream by an error."""


class Shared(Generic[Item]):
    """Items that one thread makes and all readers, 0, 1, …, get; each is let go of when the last one had it.

    lead: how many items wait for the last reader at most; one more is made meanwhile. Who leaves by an error ends all
    others by `Stopped`; the error is the cause.
    """

    def __init__(self, readers: int, lead: int = 1) -> None:
        self._lead = lead
        self._made = 0
        self._taken = [0] * readers
        self._held: dict[int, Item] = {}
        self.cause: BaseException | None = None
        self._changed = Condition()

    def fill(self, items: Iterable[Item]) -> None:
        """Make the items; in a thread of its own."""
        with self._ending_all():
            for item in items:
                self._put(item)
            self._put(_END)

    @contextmanager
    def reading(self, reader: int) -> Iterator[Iterator[Item]]:
        """The stream as one reader sees it."""
        with self._ending_all():
            yield iter(partial(self._take, reader), _END)

    def stop(self, error: BaseException) -> None:
        """End everybody who makes or wants another item."""
        with self._changed:
            self.cause = error if self.cause is None else self.cause
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
            self._await(lambda: self._made - min(self._taken) < self._lead)
            self._held[self._made] = item
            self._made += 1
            self._changed.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.cause is not None or condition())
        if self.cause is not None:
            raise StreamStopped

    def _take(self, reader: int) -> Item:
        number = self._taken[reader]
        with self._changed:
            self._await(lambda: number < self._made)
            self._taken[reader] += 1
            self._changed.notify_all()
            return self._held[number] if min(self._taken) <= number else self._held.pop(number)
