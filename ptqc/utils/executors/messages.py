"""What goes between a compile and its workers: names of entries in the store, and no more."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a worker ended with a message."""

    SOLVED = "solved"
    REFUSED = "refused"  # its processor or its libraries differ
    MISSING = "missing"  # the problem is not in the store that it sees
    FAILED = "failed"


@dataclass(frozen=True)
class Message:
    """A problem to be solved. unit: the class, as "module:name". store: its address. problem, result: entries there.

    kind: of the process that asks (`ptqc.utils.executors.kind`).
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
