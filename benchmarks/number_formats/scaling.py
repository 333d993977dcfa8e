"""How the scale of a block of numbers is chosen and stored."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from number_formats.base import SCALE_BITS
from number_formats.levels import E4M3, LevelSet
from ptqc.formats import scales

EXPONENT_BITS = 8
TINY = np.float32(2.0**-100)


class ScaleRule(ABC):
    """A way to scale blocks (R, blocks, B). bits: of the scale of a block. row_bits: of what a channel has besides."""

    bits: float
    row_bits: float = 0.0

    @abstractmethod
    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:
        """Of every block, as stored: (R, blocks)."""


def searched(blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:
    """The scales of least error."""
    return scales.search(blocks, importance, levels.nearest, levels.largest)


def exponents(scale: np.ndarray) -> np.ndarray:
    """⌊log₂ scale⌋, exactly."""
    return np.frexp(np.maximum(scale, TINY))[1] - 1


@dataclass(frozen=True)
class SearchedScale(ScaleRule):
    """A float16 of least error."""

    bits: float = SCALE_BITS

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:
        return searched(blocks, importance, levels)


@dataclass(frozen=True)
class SearchedExponent(ScaleRule):
    """The power of two of less error, of the two beside the best scale."""

    bits: float = EXPONENT_BITS

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:
        low = np.exp2(exponents(searched(blocks, importance, levels))).astype(np.float32)
        both = np.stack([low, 2 * low])
        ratio = blocks / both[..., None]
        error = (np.square((ratio - levels.nearest(ratio)) * both[..., None]) * importance).sum(-1)
        return np.where(error[0] <= error[1], both[0], both[1])


@dataclass(frozen=True)
class FloorExponent(ScaleRule):
    """⌊log₂ of the largest magnitude⌋ − that of the largest level: OCP's rule, and that of block floating point."""

    bits: float = EXPONENT_BITS

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:  # noqa: ARG002
        return np.exp2(exponents(np.abs(blocks).max(-1)) - exponents(np.array(levels.largest))).astype(np.float32)


@dataclass(frozen=True)
class CeilingExponent(ScaleRule):
    """⌈log₂(largest magnitude / largest level)⌉: nothing is cut off (Mishra et al. 2025, arXiv 2506.08027)."""

    bits: float = EXPONENT_BITS

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:  # noqa: ARG002
        wanted = np.maximum(np.abs(blocks).max(-1) / np.float32(levels.largest), TINY)
        low = np.exp2(exponents(wanted))
        return np.where(low >= wanted, low, 2 * low).astype(np.float32)


@dataclass(frozen=True)
class ShareOfRow(ScaleRule):
    """Of `bits` bits, in even steps up to the largest one of its channel, which is a float16."""

    bits: float = 4
    row_bits: float = SCALE_BITS

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:
        wanted = searched(blocks, importance, levels)
        unit = wanted.max(-1, keepdims=True) / 2**self.bits
        return unit * np.clip(np.rint(wanted / unit), 1, 2**self.bits)


@dataclass(frozen=True)
class FloatScale(ScaleRule):
    """E4M3, in units of one float32 of the weight: NVFP4's. The largest magnitude is at the largest level."""

    bits: float = 8

    def scale(self, blocks: np.ndarray, importance: np.ndarray, levels: LevelSet) -> np.ndarray:  # noqa: ARG002
        wanted = np.abs(blocks).max(-1) / np.float32(levels.largest)
        unit = max(float(wanted.max()) / E4M3.largest, float(TINY))
        return np.maximum(E4M3.nearest(wanted / unit), 2.0**-9) * np.float32(unit)
