"""What a problem says of itself, and what every executor does with it."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from threadpoolctl import threadpool_info

from ptqc.errors import TargetError
from ptqc.utils.machine import processor_features, processor_name
from ptqc.utils.store import Store
from ptqc.utils.version import __version__

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


# What the bytes of a result depend on beside its problem: the kind of processor and the versions of libraries.

# Those that results follow from, beside NumPy.
LIBRARIES = ("onnxruntime", "onnx-ir", "ml-dtypes")


@dataclass(frozen=True)
class Kind:
    """Of the process that works. products: the kernels that NumPy's library chose. source: digest of ptqc's files."""

    processor: str
    features: str
    products: str
    versions: Mapping[str, str]
    source: str

    @classmethod
    @cache
    def here(cls) -> "Kind":
        """Of this process."""
        versions = {"ptqc": __version__, "numpy": np.__version__, **{name: version(name) for name in LIBRARIES}}
        return cls(processor_name(), _features(), _products(), versions, _source())

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Kind":
        """Inverse of `to_json`."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """The document of messages and keys."""
        return asdict(self)

    def differences(self, other: "Kind") -> list[str]:
        """What is not alike, in words: "numpy is 2.1.0 there and 2.2.0 here"; `other` is there."""
        return list(self._differences(other))

    def _differences(self, other: "Kind") -> Iterator[str]:
        for name, mine in self.versions.items():
            if (theirs := other.versions.get(name, "missing")) != mine:
                yield f"{name} is {theirs} there and {mine} here"
        if self.processor != other.processor:
            yield f"the processor is {other.processor!r} there and {self.processor!r} here"
        if unlike := set(self.features.split()) ^ set(other.features.split()):
            yield f"only one of the processors has {', '.join(sorted(unlike))}"
        if self.products != other.products:
            yield f"matrices are multiplied for {other.products or 'nothing known'} there and {self.products} here"
        if self.source != other.source:
            yield "the files of ptqc are not the same"


def _features() -> str:
    try:
        return " ".join(sorted(processor_features()))
    except TargetError:  # the system does not tell
        return ""


def _products() -> str:
    """The kernels that NumPy's library multiplies with; other packages may have loaded libraries of their own."""
    result = [one for one in threadpool_info() if one["user_api"] == "blas"]
    own = [one for one in result if "numpy" in one["filepath"]] or result
    return " ".join(sorted({one.get("architecture") or one["internal_api"] for one in own}))


def _source() -> str:
    """Of all modules of ptqc: a checkout may have changed while its version has not."""
    folder, result = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(_modules(folder)):
        result.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return result.hexdigest()


def _modules(folder: Path) -> Iterator[Path]:
    """Files below a folder, those behind the links in ptqc/ included."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


# What goes between a compile and its workers: names of entries in the store, and no more.


class Outcome(StrEnum):
    """How a worker ended with a message."""

    SOLVED = "solved"
    REFUSED = "refused"  # its processor or its libraries differ
    MISSING = "missing"  # the problem is not in the store that it sees
    FAILED = "failed"


@dataclass(frozen=True)
class Message:
    """A problem to be solved. unit: the class, as "module:name". store: its address. problem, result: entries there.

    kind: of the process that asks (`Kind`).
    """

    unit: str
    store: str
    problem: str
    result: Mapping[str, Any]
    kind: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """host: where the worker is. text: what was wrong. error: name of the error's class. trace: where it was raised."""

    outcome: Outcome
    host: str
    text: str = ""
    error: str = ""
    trace: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Reply":
        """Inverse of `to_json`."""
        return cls(**{**document, "outcome": Outcome(document["outcome"])})

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        return asdict(self)
