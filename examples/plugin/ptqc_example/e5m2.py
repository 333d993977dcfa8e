"""A format: E5M2, eight bits of floating point, stored as ONNX's own type with a scale per channel."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ptqc.formats import Grid, Nodes, Scaled, scales
from ptqc.formats.base import V

LARGEST = 57344.0


def to_e5m2(values: np.ndarray) -> np.ndarray:
    """Nearest numbers of the format, float32; what is larger than the largest becomes the largest."""
    clipped = np.clip(values, -LARGEST, LARGEST)
    return np.asarray(clipped.astype(ml_dtypes.float8_e5m2).astype(np.float32))


class E5M2(Scaled):
    """e5m28: five bits of exponent, two of fraction; unpacked by Cast and Mul."""

    family = "e5m2"
    mark: ClassVar[str] = "e"
    opset: ClassVar[int] = 19

    @classmethod
    def members(cls) -> Iterable["E5M2"]:
        """The one."""
        return [cls(8)]

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:  # noqa: ARG003
        """Whatever widths of integers are asked for."""
        return [cls(8)]

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each weight is rounded for itself."""
        scale = scales.search(rows, importance, to_e5m2, LARGEST)
        lowest = 0.0 if keeps_sign else -np.inf
        return Grid(scale, 1, lambda ratio, _: to_e5m2(np.maximum(ratio, lowest)), ml_dtypes.float8_e5m2)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Codes in bytes; then the scales."""
        return [codes, scales.narrow(scale)]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """Codes as real numbers; whoever asks multiplies by the scales."""
        return nodes.add("Cast", [nodes.stored()], to=to)
