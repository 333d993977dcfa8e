"""8 or 4 bits with a scale for each row: s = max|x| / L in float16, codes round(x / s) in −L … L with L = 127 or 7.

Codes are stored as bytes with L + 1 added, of 4 bits two in a byte. The largest of a row has the code L or −L, as
float16 is off by 2⁻¹¹ at most: L · s / L = s, so what is unpacked packs to the same again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache import nibbles
from ptqc.kv_cache.form import CacheForm, CachePart, NodeDraft, channels_of

SCALE = ".scale"
# Of a scale; smaller ones have fewer digits in float16, and larger ones do not exist.
LEAST, MOST = 2.0**-14, 65504.0


@dataclass(frozen=True)
class ScaledRows(CacheForm):
    """Even codes. levels: L, the largest code."""

    levels: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """By its bits."""
        return "int4" if self.pairs else "int8"

    @property
    def pairs(self) -> bool:
        """Whether a byte holds two codes."""
        return self.levels < nibbles.HIGH / 2

    def refusal(self, channels: int) -> str | None:
        """An odd number of codes cannot share bytes."""
        return f"{channels} channels are an odd number" if self.pairs and channels % 2 else None

    def parts(self, channels: int) -> Sequence[CachePart]:
        """Codes and scales."""
        codes = CachePart("", ir.DataType.UINT8, channels // 2 if self.pairs else channels)
        return codes, CachePart(SCALE, ir.DataType.FLOAT16, 1)

    def pack(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rounded to even."""
        top = np.float32(self.levels)
        real = np.clip(np.abs(x).max(-1, keepdims=True, initial=0) / top, np.float32(LEAST), np.float32(MOST))
        scale = real.astype(np.float16)
        codes = np.clip(np.round(x / scale.astype(np.float32)), -top, top) + np.float32(self.levels + 1)
        return (nibbles.joined(codes) if self.pairs else codes).astype(np.uint8), scale

    def unpack(self, *parts: np.ndarray) -> np.ndarray:
        """(code − L − 1) · s."""
        codes = parts[0].astype(np.float32)
        codes = nibbles.parted(codes) if self.pairs else codes
        return np.asarray((codes - np.float32(self.levels + 1)) * parts[1].astype(np.float32))

    def packing(self, nodes: NodeDraft, x: ir.Value) -> Sequence[ir.Value]:
        """The same, step by step."""
        top = float(self.levels)
        real = nodes.op("Div", nodes.largest(x), nodes.real(top))
        scale = nodes.cast(nodes.op("Clip", real, nodes.real(LEAST), nodes.real(MOST)), ir.DataType.FLOAT16)
        whole = nodes.op("Round", nodes.op("Div", x, nodes.cast(scale, ir.DataType.FLOAT)))
        codes = nodes.op("Add", nodes.op("Clip", whole, nodes.real(-top), nodes.real(top)), nodes.real(top + 1))
        codes = nibbles.joining(nodes, codes, channels_of(x)) if self.pairs else codes
        return nodes.cast(codes, ir.DataType.UINT8), scale

    def unpacking(self, nodes: NodeDraft, parts: Sequence[ir.Value]) -> ir.Value:
        """The same, step by step."""
        codes = nodes.cast(parts[0], ir.DataType.FLOAT)
        codes = nibbles.parting(nodes, codes) if self.pairs else codes
        centred = nodes.op("Sub", codes, nodes.real(self.levels + 1))
        return nodes.op("Mul", centred, nodes.cast(parts[1], ir.DataType.FLOAT))
