"""Codebooks: codes from a short list that fits the weight, in place of evenly spaced ones, times a scale per channel.

The file holds indices into the list; the kernel sees int8 codes, so it costs nothing at run time. Codebooks gain most
where weights are skewed or have heavy tails.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.errors import InternalError
from ptqc.formats import planes
from ptqc.formats.base import Coded, Grid, Nodes, Scaled, V
from ptqc.formats.levels import REACH, fit, indices

# With more bits, too many of the levels within ±63 would lie where an even grid has them.
BITS = range(2, 5)


class Codebook(Coded):
    """codebook2 to codebook4: 2^bits codes that the weight shares."""

    family = "codebook"
    mark: ClassVar[str] = "c"
    is_learned: ClassVar[bool] = True
    in_order: ClassVar[bool] = True

    @classmethod
    def members(cls) -> Iterable["Codebook"]:
        """All formats of the family."""
        return map(cls, BITS)

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """The codebooks of these widths."""
        return [cls(bits) for bits in widths if bits in BITS]

    @property
    def code_bits(self) -> int:
        """Bits of the int8 codes that integer kernels read."""
        return REACH.bit_length() + 1

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:  # noqa: ARG002
        """The levels that fit the rows best, and the scales that go with them."""
        result, scale = fit(rows, importance, self.bits, self.group)
        return Grid(scale, self.group, result.nearest)

    def levels(self, codes: np.ndarray) -> np.ndarray:
        """The codes that occur."""
        return np.unique(codes).astype(np.float32)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Planes of indices, or these as they are where they have 8 bits; the list of codes; the scales."""
        index, listed = indices(codes, self.group)
        unused = 2**self.bits - len(listed)
        if unused < 0:
            raise InternalError(f"{len(listed)} levels do not fit {self}")
        # Always as many, so that the bytes of a format do not depend on the numbers.
        listed = np.pad(listed, ((0, unused), (0, 0)), mode="edge")
        packed = planes.pack(index, self.bits) or (index,)
        return [*packed, listed if self.group > 1 else listed.reshape(-1), scale]

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        return [*self.planes(), "v", "s"]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """The codes that indices stand for."""
        codes = nodes.looked_up()
        return codes if to == ir.DataType.INT8 else nodes.add("Cast", [codes], to=to)
