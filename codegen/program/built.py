"""A kernel that a target wrote, and what it says of a node that it has none for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ptqc.codegen.program.accuracy import USUAL, Accuracy
from ptqc.codegen.program.constants import Stored

Cut = TypeVar("Cut")


class Declined(Exception):
    """What no kernel of a target computes; the message says why."""


@dataclass(frozen=True)
class Alternatives(Generic[Cut]):
    """Ways to cut a kernel's loops, the one it has first; all compute the same. write: the kernel cut otherwise."""

    cuts: Sequence[Cut]
    write: Callable[[Cut], "Built"]


@dataclass(frozen=True)
class Built:
    """A kernel and its constants, which follow the inputs among its arguments; the output is the last one.

    family: what it computes, as reports call it. name: of the function in the library. function: TVM's. operations:
    products and sums of one sample, where these are what takes time. predicted: microseconds for one sample by machine,
    where a target predicts them. lengths: those that it takes behind the output, in this order.
    """

    family: str
    name: str
    function: Any
    constants: tuple[Stored, ...]
    operations: int = 0
    accuracy: Accuracy = USUAL
    alternatives: Alternatives[Any] | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    lengths: tuple[str, ...] = ()
