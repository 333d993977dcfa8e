"""Integer codes of activations, one scale and zero point per tensor: real = scale · (code − zero_point)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.formats.activations import ActivationFormat, ActivationParams


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
        return QuantParams(self, entry["scale"], entry["zero_point"])


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
