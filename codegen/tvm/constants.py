"""Constants of kernels: how they lie in the file, and what makes them ready when it is loaded.

Codes that fit in fewer than 8 bits are stored as bit planes. Low-bit weights of a layer that computes in float32 are
stored as codes and scales.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.codegen.onnxruntime import planes


@dataclass(frozen=True)
class Scaled:
    """float32 weights (panels, depth, width) that are int8 codes times one scale for each (panel, width)."""

    codes: np.ndarray
    scale: np.ndarray
    panels: int

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return int(self.scale.size // self.panels)

    @property
    def depth(self) -> int:
        """Weights of a channel."""
        return int(self.codes.size // self.scale.size)


Stored = np.ndarray | Scaled


def bits_of(codes: np.ndarray) -> int:
    """The fewest bits that hold signed codes, 2 to 8."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return next(bits for bits in range(2, 9) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1))


def pack(codes: np.ndarray, bits: int) -> tuple[np.ndarray, ...]:
    """Planes of int8 codes."""
    return planes.pack(codes.astype(np.int16) + 2 ** (bits - 1), bits)


def stored_bytes(constant: Stored) -> int:
    """Bytes in the file."""
    if isinstance(constant, Scaled):
        return stored_bytes(constant.codes) + constant.scale.nbytes
    if constant.dtype != np.int8:
        return int(constant.nbytes)
    return planes.packed_bytes(constant.size, bits_of(constant))
