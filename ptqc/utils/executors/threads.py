"""Units solved in the threads that ask for it."""

from collections.abc import Callable
from typing import ClassVar, Self

from ptqc.utils.executors.base import Executor, Result, UnitOfWork
from ptqc.utils.parallel import processors
from ptqc.utils.store import Store


class Threads(Executor):
    """The default: nothing is written or sent. workers: 0 is one for each processor."""

    name: ClassVar[str] = "threads"

    def __init__(self, workers: int = 0) -> None:
        self._workers = workers

    @classmethod
    def of(cls, store: Store, workers: int, address: str = "") -> Self:  # noqa: ARG003
        """So many threads."""
        return cls(workers)

    @property
    def workers(self) -> int:
        """How many threads are worth having."""
        return self._workers or processors()

    def solve(self, label: str, make: Callable[[], UnitOfWork[Result]]) -> Result:  # noqa: ARG002
        """The result, computed at once."""
        return make().solve()

    def close(self) -> None:
        """Nothing is held."""
