"""What a problem says of itself, and what every executor does with it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from ptqc.utils.store.entries import Store

Result = TypeVar("Result")
# A document in JSON, and arrays by name: what an entry of the store holds.
Packed = tuple[Any, Mapping[str, np.ndarray]]


class UnitOfWork(ABC, Generic[Result]):
    """A problem that is solved from what it holds alone: the same bytes follow wherever that is done, and how often."""

    @abstractmethod
    def solve(self) -> Result:
        """The result; NumPy's products take one thread."""

    @abstractmethod
    def pack(self) -> Packed:
        """All that the problem holds."""

    @classmethod
    @abstractmethod
    def unpack(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> Self:
        """Inverse of `pack`."""

    @classmethod
    @abstractmethod
    def pack_result(cls, result: Result) -> Packed:
        """All that a result holds."""

    @classmethod
    @abstractmethod
    def unpack_result(cls, document: Any, arrays: Mapping[str, np.ndarray]) -> Result:
        """Inverse of `pack_result`."""


class Executor(ABC):
    """Solves units, as many at a time as threads call `solve`; within a `with` block, at whose end it lets go of all.

    name: as `--executor` has it. takes_address: whether `name://address` is understood. is_here: whether it takes
    memory and processors of this machine.
    """

    name: ClassVar[str]
    takes_address: ClassVar[bool] = False
    is_here: bool = True

    @classmethod
    @abstractmethod
    def of(cls, store: Store, workers: int, address: str = "") -> Self:
        """An executor that works with this store. workers: units at a time; 0: as many as there are processors.

        address: what stands behind `name://`. Raises UsageError where something that it needs is not installed.
        """

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many units are worth solving at a time."""

    @abstractmethod
    def solve(self, label: str, make: Callable[[], UnitOfWork[Result]]) -> Result:
        """The result of a problem, which is made when its turn has come. label: what errors call it, once a compile.

        Raises what solving it raises, and Interrupted where workers are lost again and again.
        """

    def settle(self, labels: Iterable[str]) -> None:
        """Let go of what was kept of these results, since the caller has put them elsewhere."""
        del labels

    @abstractmethod
    def close(self) -> None:
        """Let go of workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.workers} {self.name}"
