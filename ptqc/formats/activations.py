"""What a format of activations is, and its parameters for one site. float32 is what a site without a format has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.formats.base import LOWEST_OPSET, Format


class ActivationFormat(ABC):
    """How activations are rounded. known: all that there are."""

    known: ClassVar[tuple["ActivationFormat", ...]] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The stable key in plans: uint8, bfloat16."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def read(self, entry: Mapping[str, Any]) -> "ActivationParams":
        """Parameters from their entry in a plan. Raises KeyError, TypeError or ValueError where it is not one."""


class ActivationParams(ABC):
    """How the activations of one site are rounded: a format and its parameters. Equal ones round alike."""

    format: ActivationFormat

    @abstractmethod
    def rounded(self, x: np.ndarray) -> np.ndarray:
        """The values nearest to x in the format, float32."""

    def to_json(self) -> dict[str, Any]:
        """The entry in a plan."""
        return {"format": str(self.format)}


def read(entry: Mapping[str, Any]) -> ActivationParams:
    """Inverse of `to_json`, for an entry that names its site. Raises KeyError, TypeError or ValueError."""
    known = {form.name: form for form in ActivationFormat.known}
    form = known.get(entry["format"])
    if form is None:
        raise ValueError(f"site {entry['site']!r} is {entry['format']}; activations are {' or '.join(known)}")
    return form.read(entry)


def read_scale(entry: Mapping[str, Any]) -> float:
    """The scale of a site. Raises KeyError, TypeError or ValueError."""
    if type(scale := entry["scale"]) not in (int, float):
        raise TypeError(f"site {entry['site']!r}: scale must be a number, got {scale!r}")
    # An integer can be beyond any float.
    if scale > 1e39 or not np.finfo(np.float32).tiny <= scale <= np.finfo(np.float32).max:
        raise ValueError(f"site {entry['site']!r}: scale must be positive and finite in float32, got {scale!r}")
    return float(scale)


# Integer codes of activations, one scale and zero point per tensor: real = scale · (code − zero_point).


@dataclass(frozen=True)
class Affine(ActivationFormat):
    """Codes of so many bits, unsigned unless said otherwise."""

    bits: int
    signed: bool = False

    @property
    def name(self) -> str:
        """The stable key in plans."""
        return f"{'' if self.signed else 'u'}int{self.bits}"

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest code."""
        return self.low + (1 << self.bits) - 1

    def read(self, entry: Mapping[str, Any]) -> "QuantParams":
        """Parameters from their entry in a plan."""
        scale, zero_point = read_scale(entry), entry["zero_point"]
        if type(zero_point) is not int:
            raise TypeError(f"site {entry['site']!r}: zero_point must be an integer, got {zero_point!r}")
        return QuantParams(self, scale, zero_point)


UINT8 = Affine(8)


@dataclass(frozen=True)
class QuantParams(ActivationParams):
    """Per-tensor quantization of an activation: real = scale · (code − zero_point).

    Tensors that share a scale share one object.
    """

    format: Affine
    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be positive and finite, got {self.scale}")
        if not self.format.low <= self.zero_point <= self.format.high:
            raise ValueError(f"zero point {self.zero_point} lies outside {self.format}")

    @property
    def low(self) -> float:
        """Smallest representable real value."""
        return self.scale * (self.format.low - self.zero_point)

    @property
    def high(self) -> float:
        """Largest representable real value."""
        return self.scale * (self.format.high - self.zero_point)

    def steps(self, x: np.ndarray) -> np.ndarray:
        """rint(x / scale), the caller's to change; values beyond float32 become infinite, which saturates."""
        with np.errstate(over="ignore"):
            steps = np.asarray(np.asarray(x, np.float32) / np.float32(self.scale))
        return np.rint(steps, out=steps)

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """The values that the codes nearest to x stand for."""
        steps = self.steps(x)
        np.clip(steps, self.format.low - self.zero_point, self.format.high - self.zero_point, out=steps)
        steps *= np.float32(self.scale)
        return steps

    def to_json(self) -> dict[str, Any]:
        """The entry in a plan."""
        return {**super().to_json(), "scale": float(self.scale), "zero_point": self.zero_point}


def coded(params: Mapping[str, ActivationParams]) -> dict[str, QuantParams]:
    """Those of the activations that are codes, which integer kernels read."""
    return {name: one for name, one in params.items() if isinstance(one, QuantParams)}


# Activations as real numbers of fewer digits. In a graph, a node rounds to them and another goes back.


@dataclass(frozen=True)
class Reader:
    """A layer in float that reads an activation.

    reads_pairs: whether it is a convolution that multiplies an even number of inputs. weight: the format of its weight;
    None where that is not decided yet.
    """

    reads_pairs: bool
    weight: Format | None = None


class FloatActivation(ActivationFormat):
    """Real numbers of fewer digits. opset: the lowest that has the nodes which round to them."""

    opset: ClassVar[int] = LOWEST_OPSET

    @abstractmethod
    def of_range(self, low: float, high: float) -> "FloatRounding":
        """Parameters of a site that was observed in this range."""

    @abstractmethod
    def gains(self, readers: Sequence["Reader"]) -> bool:
        """Whether rounding what these layers in float read, which are all that read it, makes one of them faster."""


class FloatRounding(ActivationParams):
    """How values of one site are rounded to real numbers of fewer digits."""

    format: FloatActivation

    @abstractmethod
    def nodes(self, value: ir.Value, constant: Callable[[np.ndarray], ir.Value]) -> tuple[ir.Node, ir.Node]:
        """The nodes that round a value and that go back to float32, with types of their outputs."""


def rounded_to(params: Mapping[str, ActivationParams]) -> dict[str, FloatActivation]:
    """The formats of those that stay real numbers."""
    return {name: one.format for name, one in params.items() if isinstance(one, FloatRounding)}


# Activations as real numbers of 16 bits, the upper half of a float32: as many exponents, 8 binary digits.


@dataclass(frozen=True)
class Bfloat16(FloatActivation):
    """bfloat16. It needs no parameters; a Cast rounds to it and another goes back."""

    @property
    def name(self) -> str:
        """The stable key in plans."""
        return "bfloat16"

    def read(self, entry: Mapping[str, Any]) -> FloatRounding:  # noqa: ARG002
        """There is nothing to read."""
        return Bfloat16Rounding()

    def of_range(self, low: float, high: float) -> FloatRounding:  # noqa: ARG002
        """It has the range of float32."""
        return Bfloat16Rounding()

    def gains(self, readers: Sequence[Reader]) -> bool:
        """Where a convolution multiplies pairs with codes, which are exact in 8 digits."""
        return any(each.reads_pairs and (each.weight is None or each.weight.has_codes) for each in readers)


BFLOAT16 = Bfloat16()


@dataclass(frozen=True)
class Bfloat16Rounding(FloatRounding):
    """Rounding to bfloat16."""

    format: FloatActivation = BFLOAT16

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """float32 values rounded, halves to even; what is no number stays none."""
        return to_bfloat16(x)

    def nodes(
        self,
        value: ir.Value,
        constant: Callable[[np.ndarray], ir.Value],  # noqa: ARG002
    ) -> tuple[ir.Node, ir.Node]:
        """Two Casts."""
        there = ir.node("Cast", [value], attributes={"to": ir.DataType.BFLOAT16.value})
        back = ir.node("Cast", there.outputs, attributes={"to": ir.DataType.FLOAT.value})
        there.outputs[0].dtype, back.outputs[0].dtype = ir.DataType.BFLOAT16, ir.DataType.FLOAT
        return there, back


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16, halves to even; what is no number stays none."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x.astype(ir.DataType.BFLOAT16.numpy()).astype(np.float32))
