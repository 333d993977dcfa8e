"""Uniform grids: codes of 2 to 8 bits, evenly spaced, times a scale per channel.

Grids of 4 bits and more hold zero: q = −2^(b−1) … 2^(b−1)−1. Those of 2 and 3 bits are symmetric and skip zero,
q = ±1, ±3, …: on Gaussian weights 9.24 against 8.26 dB at 2 bits and 14.26 against 13.91 at 3 (measured); both fit
int8, so the kernel does not see the difference. That of 8 bits leaves out −128: two products of such weights and signed
bytes then fit in 16 bits, and it is what other runtimes take.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.formats import planes, scales
from ptqc.formats.base import Coded, Grid, Nodes, Scaled, V

BITS = range(2, 9)
SYMMETRIC_UP_TO, WIDEST = 3, 8


class Integer(Coded):
    """int2 to int8."""

    family = "int"
    in_order: ClassVar[bool] = True

    @classmethod
    def members(cls) -> Iterable["Integer"]:
        """All formats of the family."""
        return map(cls, BITS)

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """One of each width."""
        return [cls(bits) for bits in widths]

    @property
    def code_bits(self) -> int:
        """Bits of the int8 codes that integer kernels read."""
        return self.bits

    @property
    def is_symmetric(self) -> bool:
        """Whether the grid skips zero."""
        return self.bits <= SYMMETRIC_UP_TO

    @property
    def low(self) -> int:
        """Smallest code of a grid that holds zero."""
        return -(1 << (self.bits - 1)) + (self.bits == WIDEST)

    @property
    def high(self) -> int:
        """Largest code of a grid that holds zero."""
        return (1 << (self.bits - 1)) - 1

    @property
    def largest_level(self) -> float:
        """The reach of the grid in units of the scale, on the side that reaches less by half a step."""
        return 2.0**self.bits if self.is_symmetric else self.high + 0.5

    def code_of(self, index: np.ndarray) -> np.ndarray:
        """Codes q of grid indices 0 … 2^b − 1."""
        return 2 * index - (2**self.bits - 1) if self.is_symmetric else index + self.low

    def index_of(self, code: np.ndarray) -> np.ndarray:
        """Inverse of `code_of`: what is stored in b bits."""
        return (code + (2**self.bits - 1)) // 2 if self.is_symmetric else code - self.low

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        """The grid's nearest code (as float) to weight / scale."""
        if self.is_symmetric:
            return np.asarray(np.clip(2 * np.floor(ratio * 0.5) + 1, 2 * self.low + 1, 2 * self.high + 1))
        return np.asarray(np.clip(np.rint(ratio), self.low, self.high))

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each weight is rounded for itself."""
        scale = scales.search(rows, importance, self.nearest, self.largest_level)
        lowest = 0.0 if keeps_sign else -np.inf
        return Grid(scale, 1, lambda ratio, _: self.nearest(np.maximum(ratio, lowest)))

    def levels(self, codes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """All codes of the grid."""
        count = 2**self.bits - (self.bits == WIDEST)
        return np.asarray(self.code_of(np.arange(count)), np.float32)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Planes of indices, codes of 8 bits as they are; then the scales."""
        packed = planes.pack(self.index_of(codes.astype(np.int32)), self.bits)
        return [*(packed or (codes,)), scale]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """Codes from indices."""
        if not self.is_packed:
            return nodes.stored() if to == ir.DataType.INT8 else nodes.add("Cast", [nodes.stored()], to=to)
        lowest, second = self.code_of(np.arange(2)).tolist()
        return nodes.affine(second - lowest, lowest, to)
