"""What a form of a cache is: tensors that stand for its real values, and how these become them and back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import add_constant, unique_name
from ptqc.ir.sites import IN_FLOAT

# Nodes in the making, for what packs and unpacks caches.


class NodeDraft:
    """Nodes of a model that are not in it yet, in their order. hint: what their values are named after.

    A mark keeps them off integer kernels: one scale for a whole tensor would undo the scales of its rows.
    """

    def __init__(self, model: ir.Model, hint: str) -> None:
        self.model, self.hint, self.added = model, hint, list[ir.Node]()

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        node = ir.node(op_type, inputs, attributes=attributes, metadata_props={IN_FLOAT: "caches"})
        node.outputs[0].name = unique_name(self.model.graph, f"{self.hint}_{op_type.lower()}_{len(self.added)}")
        self.added.append(node)
        return node.outputs[0]

    def real(self, value: float | np.ndarray) -> ir.Value:
        """A constant of float32."""
        return add_constant(self.model, np.array(value, np.float32), f"{self.hint}_number")

    def whole(self, *values: int) -> ir.Value:
        """A constant list of int64."""
        return add_constant(self.model, np.array(values, np.int64), f"{self.hint}_whole")

    def one(self, value: int) -> ir.Value:
        """A constant int64 without axes."""
        return add_constant(self.model, np.array(value, np.int64), f"{self.hint}_one")

    def cast(self, x: ir.Value, kind: ir.DataType) -> ir.Value:
        """x as another type."""
        return self.op("Cast", x, to=int(kind))

    def largest(self, x: ir.Value) -> ir.Value:
        """max|x| over the last axis, which stays; the axes of ReduceMax are an input since opset 18."""
        sizes = self.op("Abs", x)
        if self.model.graph.opset_imports[""] >= 18:
            return self.op("ReduceMax", sizes, self.whole(-1), keepdims=1)
        return self.op("ReduceMax", sizes, axes=[-1], keepdims=1)


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


# Values of a model with caches, as its packed form takes or gives them, and back.

Values = Mapping[str, np.ndarray]


def packed_feeds(feeds: Values, forms: Mapping[str, CacheForm]) -> dict[str, np.ndarray]:
    """Feeds of the model as it was, as its packed form takes them. forms: by the name of the cache."""
    result = dict[str, np.ndarray]()
    for name, array in feeds.items():
        result.update(packed_arrays(name, array, forms[name]) if name in forms else {name: array})
    return result


def unpacked_feeds(feeds: Values, forms: Mapping[str, CacheForm]) -> dict[str, np.ndarray]:
    """What a packed model takes or gives, as the model as it was: of caches their real values, by the same name."""
    stored = {name + suffix for name, form in forms.items() for suffix in form.suffixes}
    real = {name: real_of(name, feeds, form) for name, form in forms.items()}
    return {**{name: array for name, array in feeds.items() if name not in stored}, **real}


def real_of(name: str, values: Values, form: CacheForm) -> np.ndarray:
    """The real values of one cache, whose parts are among others."""
    return form.unpack(*(values[name + suffix] for suffix in form.suffixes))


def packed_arrays(name: str, array: np.ndarray, form: CacheForm) -> dict[str, np.ndarray]:
    """The parts of one cache by the names of their inputs."""
    parts = form.parts(array.shape[-1])
    return {name + part.suffix: stored for part, stored in zip(parts, form.pack(array), strict=True)}
