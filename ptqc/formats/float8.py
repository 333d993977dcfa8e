"""FP8 E4M3: four bits of exponent, three of fraction, no infinity (Micikevicius et al. 2022, arXiv 2209.05433).

GPUs from Ada and Hopper on multiply such numbers. Weights have a scale per channel, activations one per tensor; in the
file they stand between QuantizeLinear and DequantizeLinear, in which form compilers for such hardware read them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ptqc.formats import scales
from ptqc.formats.activations import FloatActivation, FloatRounding, Reader, read_scale
from ptqc.formats.base import Grid, Nodes, Scaled, V

LARGEST = 448.0
NAME = "float8_e4m3fn"
# Digits do not depend on the scale, so that room for larger values than were observed costs next to nothing.
ROOM = 2.0
# The least scale of a channel, as a share of the weight's largest: small numbers keep their digits, and ONNX Runtime,
# which rounds the bias to steps of both scales in int32, has room for it.
LEAST_SCALE = 2.0**-6
TYPE = ir.DataType.FLOAT8E4M3FN


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of the format, float32, halves to even; beyond the largest the largest, NaN stays NaN."""
    return np.asarray(np.clip(values, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


class Float8(Scaled):
    """A tensor of ONNX's type FLOAT8E4M3FN in front of a DequantizeLinear."""

    family = NAME
    is_plain: ClassVar[bool] = True
    by_default: ClassVar[bool] = False  # int8 loses 7 to 11 dB less in the same bytes
    opset: ClassVar[int] = 19

    @property
    def name(self) -> str:
        """The stable key in plans, without bits, which are in the name of the family."""
        return self.family

    @classmethod
    def members(cls) -> Iterable["Float8"]:
        """The one."""
        return [cls(8)]

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:  # noqa: ARG003
        """Whatever widths of integers are asked for."""
        return [cls(8)]

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each weight is rounded for itself."""
        scale = scales.search(rows, importance, to_e4m3, LARGEST)
        scale = np.maximum(scale, np.float32(LEAST_SCALE) * scale.max(-1, keepdims=True))
        lowest = 0.0 if keeps_sign else -np.inf
        return Grid(scale, 1, lambda ratio, _: to_e4m3(np.maximum(ratio, lowest)), ml_dtypes.float8_e4m3fn)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """The codes, and float32 scales, as DequantizeLinear reads them."""
        return [codes, scale.astype(np.float32)]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """Codes as real numbers."""
        return nodes.add("Cast", [nodes.stored()], to=to)


FLOAT8 = Float8(8)


@dataclass(frozen=True)
class Float8Activation(FloatActivation):
    """E4M3 times a scale of the tensor."""

    opset: ClassVar[int] = 21

    @property
    def name(self) -> str:
        """The stable key in plans."""
        return NAME

    def read(self, entry: Mapping[str, Any]) -> FloatRounding:
        """The scale from an entry in a plan."""
        return Float8Rounding(read_scale(entry))

    def of_range(self, low: float, high: float) -> FloatRounding:
        """The scale with which twice the range is within reach."""
        reach = ROOM * max(abs(low), abs(high))
        return Float8Rounding(max(reach / LARGEST, float(np.finfo(np.float32).tiny)))

    def gains(self, readers: Sequence[Reader]) -> bool:
        """Where all weights have the same type; ONNX Runtime rounds others to int8 behind a rounded input."""
        return bool(readers) and all(each.weight in (None, FLOAT8) for each in readers)


FLOAT8_ACTIVATION = Float8Activation()


@dataclass(frozen=True)
class Float8Rounding(FloatRounding):
    """Rounding to E4M3 times a scale.

    Raises ValueError for a scale that is not positive and finite.
    """

    scale: float
    format: FloatActivation = FLOAT8_ACTIVATION

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be positive and finite, got {self.scale}")

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """The values that the numbers nearest to x / scale stand for."""
        scale = np.float32(self.scale)
        with np.errstate(over="ignore"):
            return np.asarray(to_e4m3(np.asarray(x, np.float32) / scale) * scale)

    def to_json(self) -> dict[str, Any]:
        """The entry in a plan."""
        return {**super().to_json(), "scale": float(self.scale)}

    def nodes(self, value: ir.Value, constant: Callable[[np.ndarray], ir.Value]) -> tuple[ir.Node, ir.Node]:
        """QuantizeLinear and DequantizeLinear.

        Without a zero point: ONNX Runtime (1.17 to 1.32) drops a Relu in front of one that is 0, as if codes were
        unsigned.
        """
        scale = constant(np.asarray(self.scale, np.float32))
        there = ir.node("QuantizeLinear", [value, scale], attributes={"output_dtype": TYPE.value})
        back = ir.node("DequantizeLinear", [*there.outputs, scale])
        there.outputs[0].dtype, back.outputs[0].dtype = TYPE, ir.DataType.FLOAT
        return there, back
