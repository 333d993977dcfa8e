"""Block floating point of 4 bits: B neighbouring channels share an exponent, and may be sorted before.

e = ⌊log₂ max|x|⌋ of a block, its step 2^(e − 2), codes round(x / step) in −7 … 7, two in a byte with 8 added; exponents
are bytes with a bias. The largest code is 4 at least, so what is unpacked has the same exponents again. Channels of
large energy take the bits of all others in their block. Sorted by energy they share blocks (Trukhanov and Soloveychik
2024, arXiv 2403.20137), here those of all heads of a cache together: heads of 8 channels then profit, and rotary
positions, which turn pairs of channels, put no limit on the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ptqc.kv_cache import nibbles
from ptqc.kv_cache.form import CacheForm, CachePart, NodeDraft, channels_of

EXPONENT = ".exponent"
BITS, WIDEST, NARROWEST = 4, 32, 4
TOP, MIDDLE = 7.0, 8.0
# Exponents e that there are, and the byte that stands for the first of them; 0 stands for a step of 0.
FIRST, LAST, BIAS = -60, 60, 61
# ⌊log₂ m − MARGIN⌋ is e or e − 1, however a logarithm is rounded.
MARGIN = 0.01


def _steps(shift: int) -> np.ndarray:
    """2^(e + shift) by the byte of e, and 0 for the byte 0."""
    exponents = np.arange(LAST + BIAS + 1) - BIAS
    return np.where(exponents >= FIRST, np.exp2(exponents + shift), 0.0).astype(np.float32)


@dataclass(frozen=True)
class BlockFloat(CacheForm):
    """order: of the channels of all heads, (heads · channels) numbers; empty: as they are."""

    order: tuple[int, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        """By whether it sorts."""
        return "bfp4-sorted" if self.order else "bfp4"

    def refusal(self, channels: int) -> str | None:
        """Blocks share nothing if they are too small."""
        block = block_of(channels)
        return None if block >= NARROWEST else f"{channels} channels have no blocks of {NARROWEST} or more"

    def parts(self, channels: int) -> Sequence[CachePart]:
        """Codes and exponents."""
        exponents = CachePart(EXPONENT, ir.DataType.UINT8, channels // block_of(channels))
        return CachePart("", ir.DataType.UINT8, channels // 2), exponents

    def pack(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """In exact arithmetic but for the rounding to codes, which is to even."""
        x, block = self._moved(x, np.array(self.order, np.int64)), block_of(x.shape[-1])
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
        most = np.abs(blocks).max(-1, keepdims=True, initial=2.0**FIRST)
        _, above = np.frexp(most)  # most = f · 2^above with f in [½, 1)
        exponents = np.clip(above - 1, FIRST, LAST) + BIAS
        codes = np.clip(np.round(blocks / _steps(2 - BITS)[exponents]), -TOP, TOP) + np.float32(MIDDLE)
        return nibbles.joined(codes.reshape(x.shape)).astype(np.uint8), exponents[..., 0].astype(np.uint8)

    def unpack(self, *parts: np.ndarray) -> np.ndarray:
        """(code − 8) · step, which is exact."""
        codes = nibbles.parted(parts[0].astype(np.float32)) - np.float32(MIDDLE)
        steps = _steps(2 - BITS)[parts[1]]
        blocks = codes.reshape(*steps.shape, codes.shape[-1] // steps.shape[-1]) * steps[..., None]
        return self._moved(blocks.reshape(codes.shape), np.argsort(self.order))

    def packing(self, nodes: NodeDraft, x: ir.Value) -> Sequence[ir.Value]:
        """The same; the exponent by a logarithm, which comparing with 2^e corrects."""
        channels = channels_of(x)
        x, block = self._moving(nodes, x, channels, self.order), block_of(channels)
        blocks = nodes.op("Reshape", x, nodes.whole(0, 0, 0, channels // block, block))
        most = nodes.largest(blocks)
        logarithm = nodes.op("Log", nodes.op("Max", most, nodes.real(2.0**FIRST)))
        scaled = nodes.op("Sub", nodes.op("Mul", logarithm, nodes.real(1 / np.log(2))), nodes.real(MARGIN))
        place = nodes.cast(nodes.op("Add", nodes.op("Floor", scaled), nodes.real(BIAS)), ir.DataType.INT64)
        place = nodes.op("Clip", place, nodes.one(FIRST + BIAS), nodes.one(LAST + BIAS))
        is_above = nodes.op("GreaterOrEqual", most, nodes.op("Gather", nodes.real(_steps(1)), place))
        place = nodes.op("Add", place, nodes.cast(is_above, ir.DataType.INT64))
        place = nodes.op("Min", place, nodes.one(LAST + BIAS))
        whole = nodes.op("Round", nodes.op("Div", blocks, nodes.op("Gather", nodes.real(_steps(2 - BITS)), place)))
        codes = nodes.op("Add", nodes.op("Clip", whole, nodes.real(-TOP), nodes.real(TOP)), nodes.real(MIDDLE))
        pairs = nibbles.joining(nodes, nodes.op("Reshape", codes, nodes.whole(0, 0, 0, channels)), channels)
        exponents = nodes.op("Reshape", place, nodes.whole(0, 0, 0, channels // block))
        return nodes.cast(pairs, ir.DataType.UINT8), nodes.cast(exponents, ir.DataType.UINT8)

    def unpacking(self, nodes: NodeDraft, parts: Sequence[ir.Value]) -> ir.Value:
        """The same, step by step."""
        channels = 2 * channels_of(parts[0])
        block = block_of(channels)
        codes = nibbles.parting(nodes, nodes.cast(parts[0], ir.DataType.FLOAT))
        blocks = nodes.op("Reshape", codes, nodes.whole(0, 0, 0, channels // block, block))
        place = nodes.op("Reshape", nodes.cast(parts[1], ir.DataType.INT64), nodes.whole(0, 0, 0, channels // block, 1))
        steps = nodes.op("Gather", nodes.real(_steps(2 - BITS)), place)
        real = nodes.op("Mul", nodes.op("Sub", blocks, nodes.real(MIDDLE)), steps)
        x = nodes.op("Reshape", real, nodes.whole(0, 0, 0, channels))
        return self._moving(nodes, x, channels, tuple(np.argsort(self.order).tolist()))

    def _moved(self, x: np.ndarray, order: np.ndarray) -> np.ndarray:
        """(N, H, T, d) with the channels of all heads in this order."""
        if not self.order:
            return x
        rows = x.transpose(0, 2, 1, 3)
        flat = rows.reshape(*rows.shape[:2], len(self.order))
        return np.asarray(flat[..., order].reshape(rows.shape).transpose(0, 2, 1, 3))

    def _moving(self, nodes: NodeDraft, x: ir.Value, channels: int, order: Sequence[int]) -> ir.Value:
        """`_moved` as nodes."""
        if not self.order:
            return x
        heads = len(order) // channels
        rows = nodes.op("Transpose", x, perm=[0, 2, 1, 3])
        flat = nodes.op("Reshape", rows, nodes.whole(0, 0, heads * channels))
        moved = nodes.op("Gather", flat, nodes.whole(*order), axis=2)
        return nodes.op("Transpose", nodes.op("Reshape", moved, nodes.whole(0, 0, heads, channels)), perm=[0, 2, 1, 3])


def block_of(channels: int) -> int:
    """The largest power of two up to WIDEST that divides so many channels."""
    return min(WIDEST, channels & -channels)
