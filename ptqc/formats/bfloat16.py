"""Activations as real numbers of 16 bits, the upper half of a float32: as many exponents, 8 binary digits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.formats.float_activations import FloatActivation, FloatRounding, Reader


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
