"""Palettes: an exact constant of few distinct values, stored as indices into a table of them."""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from ptqc.formats import planes
from ptqc.formats.base import Format, Nodes, V

BITS = (1, 2, 4)
MOST_VALUES = 2 ** BITS[-1]


class Palette(Format):
    """palette1, palette2 and palette4. Its scale is the table."""

    family = "palette"

    @classmethod
    def members(cls) -> Iterable["Palette"]:
        """All formats of the family."""
        return map(cls, BITS)

    @classmethod
    def direct(cls, values: np.ndarray) -> Iterator[tuple[Format, np.ndarray, np.ndarray]]:
        """The smallest table of all values, where they are few enough."""
        if len(np.unique(values[:: max(1, len(values) // 64)])) > MOST_VALUES:
            return
        distinct, indices = np.unique(values, return_inverse=True)
        if len(distinct) <= MOST_VALUES:
            bits = next(bits for bits in BITS if len(distinct) <= 2**bits)
            yield cls(bits), indices.reshape(values.shape).astype(np.uint8), distinct.astype(np.float32)

    @property
    def colour(self) -> str:
        """Its own colour, as it is exact."""
        return self.family

    def decode(self, codes: np.ndarray, scale: np.ndarray, axis: int) -> np.ndarray:  # noqa: ARG002
        """The values that indices stand for."""
        return np.asarray(scale[codes], np.float32)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Planes of indices, and the table."""
        return [*planes.pack(codes, self.bits), scale.astype(np.float32)]

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        return [*self.planes(), "v"]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:  # noqa: ARG002  (integer kernels cannot read it)
        """The values that indices stand for."""
        return nodes.looked_up()
