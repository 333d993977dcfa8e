"""Activations as real numbers of 16 bits, the upper half of a float32: as many exponents, 8 binary digits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.formats.activations import ActivationFormat, ActivationParams


@dataclass(frozen=True)
class FloatActivation(ActivationFormat):
    """Real numbers of fewer digits. It needs no parameters; in a graph a Cast rounds to it and another goes back."""

    element: ir.DataType

    @property
    def name(self) -> str:
        """The stable key in plans."""
        return self.element.name.lower()

    def read(self, entry: Mapping[str, Any]) -> "Rounding":  # noqa: ARG002
        """There is nothing to read."""
        return Rounding(self)

    def round(self, x: np.ndarray) -> np.ndarray:
        """float32 values rounded, halves to even; what is no number stays none."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(x.astype(self.element.numpy()).astype(np.float32))


@dataclass(frozen=True)
class Rounding(ActivationParams):
    """Rounding to a float type."""

    format: FloatActivation

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """x rounded."""
        return self.format.round(x)


BFLOAT16 = FloatActivation(ir.DataType.BFLOAT16)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 values rounded to bfloat16, halves to even; what is no number stays none."""
    return BFLOAT16.round(x)


def cast(params: Mapping[str, ActivationParams]) -> dict[str, FloatActivation]:
    """The formats of those that a pair of Casts rounds."""
    return {name: one.format for name, one in params.items() if isinstance(one, Rounding)}
