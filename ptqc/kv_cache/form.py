"""What a form of a cache is: tensors that stand for its real values, and how these become them and back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache.nodes import NodeDraft

# Channels that every form can have.
FEW = 4


@dataclass(frozen=True)
class CachePart:
    """One tensor of a packed cache: (texts, heads, places, size) of a type.

    suffix: behind the name of the cache; the first part has its name alone.
    """

    suffix: str
    dtype: ir.DataType
    size: int

    @property
    def row_bytes(self) -> int:
        """Of one head at one place."""
        return self.size * self.dtype.itemsize  # type: ignore[return-value]


def channels_of(value: ir.Value) -> int:
    """The last axis of a value whose size is known."""
    size = None if value.shape is None else value.shape[-1]
    assert isinstance(size, int)
    return size


class CacheForm(ABC):
    """How keys or values (texts, heads, places, channels) are stored.

    What is unpacked packs to the same bits again, so that a place keeps its bits from run to run. The same numbers come
    out of NumPy, ONNX Runtime and a native library: every operation is exact or rounded once, to even.
    """

    name: ClassVar[str]

    def refusal(self, channels: int) -> str | None:
        """Why rows of so many channels cannot be stored so, if they cannot."""
        return None if channels else "it has no channels"

    @abstractmethod
    def parts(self, channels: int) -> Sequence[CachePart]:
        """What is stored of rows of so many channels."""

    @abstractmethod
    def pack(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """The parts of real values."""

    @abstractmethod
    def unpack(self, *parts: np.ndarray) -> np.ndarray:
        """The real values, in float32, that the model reads."""

    @abstractmethod
    def packing(self, nodes: NodeDraft, x: ir.Value) -> Sequence[ir.Value]:
        """`pack` as nodes. x: of a known number of channels."""

    @abstractmethod
    def unpacking(self, nodes: NodeDraft, parts: Sequence[ir.Value]) -> ir.Value:
        """`unpack` as nodes."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of the parts, behind the name of a cache."""
        return tuple(part.suffix for part in self.parts(FEW))

    def row_bytes(self, channels: int) -> int:
        """Of one head at one place, all parts."""
        return sum(part.row_bytes for part in self.parts(channels))
