"""float16: half of the bytes, 11 significant bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache.form import CacheForm, CachePart, NodeDraft


@dataclass(frozen=True)
class Halves(CacheForm):
    """Every value rounded to float16; beyond 65,504 it becomes infinite."""

    name: ClassVar[str] = "float16"

    def parts(self, channels: int) -> Sequence[CachePart]:
        """The values."""
        return (CachePart("", ir.DataType.FLOAT16, channels),)

    def pack(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rounded to even."""
        with np.errstate(over="ignore"):
            return (x.astype(np.float16),)

    def unpack(self, *parts: np.ndarray) -> np.ndarray:
        """Exact."""
        return parts[0].astype(np.float32)

    def packing(self, nodes: NodeDraft, x: ir.Value) -> Sequence[ir.Value]:
        """A Cast."""
        return (nodes.cast(x, ir.DataType.FLOAT16),)

    def unpacking(self, nodes: NodeDraft, parts: Sequence[ir.Value]) -> ir.Value:
        """A Cast."""
        return nodes.cast(parts[0], ir.DataType.FLOAT)
