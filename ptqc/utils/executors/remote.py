"""What executors in other processes share: problems and results are entries of the store, messages carry their names.

A problem is named by its contents, and its result by that name and the kind of the worker, so that solving it again
gives the same entry. What was solved before a compile was stopped is found by the next one.
"""

import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any

import numpy as np

from ptqc import errors
from ptqc.errors import InternalError, Interrupted, PtqcError, UsageError
from ptqc.utils.executors.base import Executor, Kind, Message, Outcome, Reply, Result, UnitOfWork
from ptqc.utils.executors.worker import name_of
from ptqc.utils.store import Store, digest, discard

# How often a problem is given to a worker, where workers are lost.
ATTEMPTS = 4
# Seconds in which workers that were lost let go of entries of the store.
PATIENCE = 2.0


class WorkerLost(Exception):
    """A worker ended without an answer."""


class Remote(Executor):
    """Solves units by asking workers that see the same store. A worker that is lost costs a repetition."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._results: dict[str, str] = {}
        self._used = set[str]()  # what was to be discarded while somebody used it
        self._making = Lock()

    @abstractmethod
    def ask(self, message: Message) -> Reply:
        """The answer of a worker that is free. Raises WorkerLost."""

    def solve(self, label: str, make: Callable[[], UnitOfWork[Result]]) -> Result:
        """The result, from the store if it is there."""
        store = self.store.anew()  # what it opens is in use for as long as the result is being read
        kind, message = self._put(store, make)
        self._results[label] = digest(message.result)
        problems = list[str]()
        while (entry := store.get(message.result)) is None:
            if len(problems) == ATTEMPTS:
                raise Interrupted(f"{label} was given to {ATTEMPTS} workers, and none gave a result: {problems[-1]}")
            try:
                reply = self.ask(message)
            except WorkerLost as error:
                problems.append(f"{error}; if memory ran out, give fewer --workers, and run the same command again")
                continue
            if reply.outcome == Outcome.MISSING:
                self._put(store, make)  # somebody may have cleared the store
            elif reply.outcome != Outcome.SOLVED:
                raise _error(label, reply)
            problems.append(
                f"{reply.host} does not see the store {store.address}; give a --cache that all machines share"
            )
        self._discard(message.problem)
        return kind.unpack_result(entry.document, entry.arrays)

    def _put(self, store: Store, make: Callable[[], UnitOfWork[Result]]) -> tuple[type[UnitOfWork[Result]], Message]:
        """Put a problem into the store if its result is not there; one at a time is in memory here."""
        with self._making:
            unit, kind = make(), Kind.here().to_json()
            document, arrays = unit.pack()
            problem = {"step": "problem", "unit": name_of(unit), "document": document, "arrays": _sums(arrays)}
            result = {"step": "result", "problem": digest(problem), "kind": kind}
            if not store.has(result):
                store.put(problem, document, arrays)
            return type(unit), Message(name_of(unit), store.address, digest(problem), result, kind)

    def settle(self, labels: Iterable[str]) -> None:
        """Remove these results from the store."""
        for label in labels:
            if (name := self._results.pop(label, None)) is not None:
                self._discard(name)

    def close(self) -> None:
        """Discard what a worker that is gone by now was using."""
        end = time.monotonic() + PATIENCE
        while self._used:
            self._used = {name for name in self._used if not discard(self.store, name)}
            if time.monotonic() > end:
                return
            time.sleep(PATIENCE / 20)

    def _discard(self, name: str) -> None:
        if not discard(self.store, name):
            self._used.add(name)


def _sums(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """What arrays are, for keys."""
    return {name: [str(array.dtype), list(array.shape), _sum(array)] for name, array in arrays.items()}


def _sum(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _error(label: str, reply: Reply) -> Exception:
    """What solving a problem raised elsewhere, as here; with its trace where it is a fault."""
    if reply.outcome == Outcome.REFUSED:
        return UsageError(
            f"the worker on {reply.host} is not like this process, and results would differ: {reply.text}. Use workers "
            "with the same kind of processor and the same packages, or --executor threads"
        )
    if reply.error == MemoryError.__name__:
        return MemoryError(reply.text)
    kind = getattr(errors, reply.error, None)
    if isinstance(kind, type) and issubclass(kind, PtqcError) and kind.__init__ is PtqcError.__init__:
        return kind(reply.text)
    return InternalError(f"{reply.error} on {reply.host} while {label} was solved: {reply.text}\n{reply.trace}")
