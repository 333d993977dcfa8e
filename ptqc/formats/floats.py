"""Weights in floating point: float32 as the model has them, and float16."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.formats.base import Format, Nodes, V

NO_SCALE = np.empty(0, np.float32)


class Float(Format):
    """float16 and float32. They have no scale."""

    family = "float"
    is_plain: ClassVar[bool] = True

    @classmethod
    def members(cls) -> Iterable["Float"]:
        """All formats of the family."""
        return FLOAT16, FLOAT32

    @classmethod
    def direct(cls, values: np.ndarray) -> Iterator[tuple[Format, np.ndarray, np.ndarray]]:
        """float32 in any case, float16 where no value is beyond its range."""
        yield FLOAT32, values, NO_SCALE
        if np.isfinite(values).all() and np.abs(values).max(initial=0.0) < np.finfo(np.float16).max:
            yield FLOAT16, values.astype(np.float16), NO_SCALE

    @property
    def is_given(self) -> bool:
        """Whether it is the weight as the model has it."""
        return self.bits == 32

    @property
    def colour(self) -> str:
        """One colour for all."""
        return self.family

    def decode(self, codes: np.ndarray, scale: np.ndarray, axis: int) -> np.ndarray:  # noqa: ARG002
        """The values in float32."""
        return codes.astype(np.float32)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:  # noqa: ARG002
        """The values as they are."""
        return [codes]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """The values in float32."""
        return nodes.stored() if self.is_given else nodes.add("Cast", [nodes.stored()], to=to)


FLOAT16 = Float(16)
FLOAT32 = Float(32)
