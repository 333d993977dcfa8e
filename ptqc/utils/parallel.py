"""The same work on several processors, with the same results.

Every item is computed by one thread from its own inputs, and NumPy's products take one thread each (see
`ptqc.compiler`), so that no byte depends on how many work at a time.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

# Bytes that all workers may need at a time.
ROOM = 7 * 2**28
# Seconds after which an interrupt is noticed that the system gave to another thread than the waiting one.
PATIENCE = 1.0
Item = TypeVar("Item")
Result = TypeVar("Result")


# Of control groups, version 2 (quota and period in one file) and 1 (one file each); microseconds.
QUOTA = Path("/sys/fs/cgroup/cpu.max")
OLDER_QUOTA = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def processors() -> int:
    """How many this process may use, at least 1: its affinity, within the limit of a container."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(mine, _quota() or mine))


def _quota() -> int | None:
    """Processors' worth of time that a container may take, rounded up; None where there is no limit."""
    try:
        words = QUOTA.read_text().split() if QUOTA.exists() else [path.read_text().strip() for path in OLDER_QUOTA]
    except OSError:
        return None
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):  # "max", or -1
        return None
    return math.ceil(int(words[0]) / int(words[1]))


def no_need(_item: object) -> int:
    """Bytes of an item that takes none worth counting."""
    return 0


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    need: Callable[[Item], int] = no_need,
    workers: int = 0,
    ahead: int | None = None,
) -> Generator[Result, None, None]:
    """Results in the order of the items, computed in threads.

    need: bytes that an item takes while it is worked on; at any time at most ROOM in all, or one item alone. workers:
    threads, 0: one for each processor; a single item is computed by the caller's. ahead: results that may wait for the
    caller, which bounds the memory of items and results; None: all. When the caller stops early, what has not begun
    never does.
    """
    workers = workers or processors()
    if workers == 1:
        yield from map(function, items)
        return
    waiting = iter(items)
    first = list(islice(waiting, 2))
    if len(first) == 1:
        yield function(first[0])
        return
    room = Room()
    executor = ThreadPoolExecutor(workers)
    try:
        begun = (executor.submit(room.run, function, item, need(item)) for item in chain(first, waiting))
        running = deque(islice(begun, None if ahead is None else workers + ahead))
        while running:
            while not wait([running[0]], timeout=PATIENCE).done:
                continue
            yield running.popleft().result()
            running.extend(islice(begun, 1))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


class Room:
    """Lets work begin while there is memory for it: at any time at most ROOM bytes in all, or one item alone."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._taken = 0

    def run(self, function: Callable[[Item], Result], item: Item, size: int) -> Result:
        """Wait for room, then compute."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= ROOM)
            self._taken += size
        try:
            return function(item)
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


# One stream of items for several threads, each of which reads all of it at its own pace.

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
        self._produced = 0
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
            self._await(lambda: self._produced - min(self._taken) < self._lead)
            self._held[self._produced] = item
            self._produced += 1
            self._changed.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.cause is not None or condition())
        if self.cause is not None:
            raise StreamStopped

    def _take(self, reader: int) -> Item:
        number = self._taken[reader]
        with self._changed:
            self._await(lambda: number < self._produced)
            self._taken[reader] += 1
            self._changed.notify_all()
            return self._held[number] if min(self._taken) <= number else self._held.pop(number)
