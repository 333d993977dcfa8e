"""The graph of a TFLite model while it is written: tensors, values in orders of axes, and operators that many need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

REAL = np.dtype(np.float32)
SHIFT = 128  # between codes of uint8 and of int8


@dataclass(eq=False)
class TfliteTensor:
    """A tensor as it lies in memory. scales, zeros: of codes, one or along an axis. data: of a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis: int = 0
    data: np.ndarray | None = None


@dataclass(frozen=True)
class TfliteOperator:
    """An operator with one output. kind: the class of its options in the schema."""

    name: str
    inputs: Sequence[TfliteTensor]
    output: TfliteTensor
    kind: str
    options: Mapping[str, Any]


@dataclass
class TfliteGraph:
    """A graph that is being written, in the order of its operators."""

    inputs: list[TfliteTensor] = field(default_factory=list)
    outputs: dict[str, TfliteTensor] = field(default_factory=dict)
    operators: list[TfliteOperator] = field(default_factory=list)


class Params(NamedTuple):
    """Of the codes of an activation, as int8."""

    scale: float
    zero: int


@dataclass(frozen=True, eq=False)
class Operand:
    """A value of the ONNX graph. order: its axes as they lie in memory."""

    tensor: TfliteTensor
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """As in the ONNX graph."""
        return tuple(self.tensor.shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def params(self) -> Params | None:
        """Of codes of activations; None of real values, weights and biases."""
        tensor = self.tensor
        one = tensor.dtype == np.int8 and len(tensor.scales) == 1
        return Params(tensor.scales[0], tensor.zeros[0]) if one else None

    @property
    def data(self) -> np.ndarray | None:
        """Of a constant, as in the ONNX graph."""
        data = self.tensor.data
        return None if data is None else data.transpose(np.argsort(self.order))


def plain(rank: int) -> tuple[int, ...]:
    """ONNX's order."""
    return tuple(range(rank))


class TfliteWriter:
    """Appends operators that many rules need to a graph."""

    def __init__(self) -> None:
        self.graph = TfliteGraph()
        self._done: dict[tuple[object, ...], Operand] = {}

    def emit(
        self,
        operator: str,
        inputs: Sequence[Operand],
        like: Operand,
        params: Params | None = None,
        kind: str = "",
        **options: Any,
    ) -> Operand:
        """Append an operator. like: has the name, shape and order of the output. params: None for real values.

        kind: the class of its options in the schema.
        """
        return self._append(operator, inputs, _tensor(like.tensor, params), like.order, kind, options)

    def move(self, operator: str, inputs: Sequence[Operand], like: Operand, kind: str, **options: Any) -> Operand:
        """Append an operator that gives numbers of its first input as they are."""
        output = _like(inputs[0].tensor, like.tensor.shape, like.tensor.name)
        return self._append(operator, inputs, output, like.order, kind, options)

    def _append(
        self,
        operator: str,
        inputs: Sequence[Operand],
        output: TfliteTensor,
        order: tuple[int, ...],
        kind: str,
        options: Mapping[str, Any],
    ) -> Operand:
        tensors = [each.tensor for each in inputs]
        self.graph.operators.append(TfliteOperator(operator, tensors, output, kind, options))
        return Operand(output, order)

    def constant(self, array: Any, params: Params | None = None, dtype: Any = None) -> Operand:
        """A constant: a real value, rounded where there are params, or of a type of its own."""
        array = np.asarray(array, REAL if dtype is None else dtype)
        tensor = TfliteTensor("constant", array.shape, array.dtype, data=array)
        value = Operand(tensor, plain(array.ndim))
        return value if params is None else self.rounded(value, params)

    def in_order(self, value: Operand, order: tuple[int, ...]) -> Operand:
        """A value with its axes in another order."""
        if value.order == order:
            return value
        perm = [value.order.index(axis) for axis in order]
        tensor = value.tensor
        shape = tuple(tensor.shape[place] for place in perm)
        if tensor.data is not None:
            data = tensor.data.transpose(perm)
            axis = perm.index(tensor.axis) if len(tensor.scales) > 1 else 0
            return Operand(
                TfliteTensor(tensor.name, shape, tensor.dtype, tensor.scales, tensor.zeros, axis, data), order
            )
        moved = [place for place in perm if tensor.shape[place] > 1]
        if moved == sorted(moved):  # nothing moves in memory
            return self.reshaped(value, shape, order)

        def transposed() -> Operand:
            like = Operand(_like(tensor, shape), order)
            sizes = self.constant(perm, dtype=np.int32)
            return self.move("TRANSPOSE", [value, sizes], like, "TransposeOptions")

        return self._once((tensor, order), transposed)

    def reshaped(self, value: Operand, shape: tuple[int, ...], order: tuple[int, ...]) -> Operand:
        """The same numbers in memory in another shape. order: that they are in then.

        Of a constant with several scales, the axes up to theirs stay.
        """
        if value.tensor.shape == shape:
            return Operand(value.tensor, order)
        if (data := value.tensor.data) is not None:
            tensor = _like(value.tensor, shape)
            tensor.data = data.reshape(shape)
            return Operand(tensor, order)

        def reshaped() -> Operand:
            like = Operand(_like(value.tensor, shape), order)
            sizes = self.constant(shape, dtype=np.int32)
            return self.move("RESHAPE", [value, sizes], like, "ReshapeOptions", newShape=list(shape))

        return self._once((value.tensor, shape, order), reshaped)

    def real(self, value: Operand) -> Operand:
        """A value as real numbers."""
        tensor = value.tensor
        if not tensor.scales:
            return value
        if tensor.data is not None:
            along = [-1 if axis == tensor.axis else 1 for axis in range(tensor.data.ndim)]
            scales, zeros = (np.reshape(each, along) for each in (tensor.scales, tensor.zeros))
            data = (tensor.data.astype(np.int64) - zeros).astype(REAL) * scales.astype(REAL)
            return Operand(TfliteTensor(tensor.name, tensor.shape, REAL, data=data), value.order)
        return self._once(
            (tensor, value.order), lambda: self.emit("DEQUANTIZE", [value], value, None, "DequantizeOptions")
        )

    def rounded(self, value: Operand, params: Params) -> Operand:
        """A value as codes with these parameters."""
        if value.params == params:
            return value
        if (data := self.real(value).tensor.data if value.tensor.data is not None else None) is not None:
            with np.errstate(over="ignore"):  # infinite, which saturates
                codes = np.clip(np.rint(data / np.float32(params.scale)) + params.zero, -SHIFT, SHIFT - 1)
            tensor = _tensor(value.tensor, params)
            tensor.data = codes.astype(np.int8)
            return Operand(tensor, value.order)
        return self._once(
            (value.tensor, value.order, params),
            lambda: self.emit("QUANTIZE", [value], value, params, "QuantizeOptions"),
        )

    def _once(self, key: tuple[object, ...], make: Callable[[], Operand]) -> Operand:
        if key not in self._done:
            self._done[key] = make()
        return self._done[key]


def _tensor(like: TfliteTensor, params: Params | None) -> TfliteTensor:
    if params is None:
        return TfliteTensor(like.name, like.shape, REAL)
    return TfliteTensor(like.name, like.shape, np.dtype(np.int8), (params.scale,), (params.zero,))


def _like(tensor: TfliteTensor, shape: tuple[int, ...], name: str = "") -> TfliteTensor:
    return TfliteTensor(name or tensor.name, shape, tensor.dtype, tensor.scales, tensor.zeros, tensor.axis)
