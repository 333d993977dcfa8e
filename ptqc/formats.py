"""Number formats, how finely their parameters are shared, and the parameters themselves."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Family(StrEnum):
    """Number families. Only those with behaviour are listed."""

    INTEGER = "int"
    FLOAT = "float"
    BFLOAT = "bfloat"  # the upper half of a float32
    PALETTE = "palette"  # an exact table of the distinct values
    CODEBOOK = "codebook"  # int8 codes from a short list that the weight shares
    PAIRS = "pairs"  # the same for two neighbouring weights at a time


@dataclass(frozen=True, order=True)
class Format:
    """A storage format: family, bits and, for integers, signedness.

    str() gives the stable key used in plans: int4, uint8, codebook3, pairs7, float16, float32,
    bfloat16, palette1.
    """

    family: Family
    bits: int
    signed: bool = True

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}{self.family}{self.bits}"

    @classmethod
    def parse(cls, text: str) -> "Format":
        """Inverse of str(). Raises ValueError naming the text."""
        for family in Family:
            for prefix, signed in ((family.value, True), ("u" + family.value, False)):
                if text.startswith(prefix) and text[len(prefix) :].isdigit():
                    return cls(family, int(text[len(prefix) :]), signed)
        known = "int2…int8, uint8, codebook2…4, pairs3…8, float16, float32, bfloat16, palette1…8"
        raise ValueError(f"unknown number format {text!r}; known: {known}")

    @property
    def has_codes(self) -> bool:
        """Whether a weight in it is int8 codes times a scale per channel, which integer kernels take."""
        return self.family in (Family.INTEGER, Family.CODEBOOK, Family.PAIRS)

    @property
    def is_codebook(self) -> bool:
        """Whether the codes come from a list that the weight shares."""
        return self.family in (Family.CODEBOOK, Family.PAIRS)

    @property
    def group(self) -> int:
        """Weights that share one stored index."""
        return 2 if self.family == Family.PAIRS else 1

    @property
    def bits_per_weight(self) -> float:
        """Stored bits of one weight, without scales and levels."""
        return self.bits / self.group

    @property
    def low(self) -> int:
        """Smallest integer code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest integer code."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


def mean_bits(counts: Iterable[tuple[Format, int]]) -> float:
    """Stored bits of the mean weight, without scales and levels; 0 where there are none. counts: weights per format."""
    found = list(counts)
    return sum(form.bits_per_weight * count for form, count in found) / max(1, sum(count for _, count in found))


def integer(bits: int, signed: bool = True) -> Format:
    """An integer format."""
    return Format(Family.INTEGER, bits, signed)


def codebook(bits: int) -> Format:
    """A codebook of 2^bits codes."""
    return Format(Family.CODEBOOK, bits)


def pairs(bits: int) -> Format:
    """A codebook of 2^bits pairs of codes."""
    return Format(Family.PAIRS, bits)


UINT8 = integer(8, signed=False)
FLOAT16 = Format(Family.FLOAT, 16)
FLOAT32 = Format(Family.FLOAT, 32)
BFLOAT16 = Format(Family.BFLOAT, 16)


@dataclass(frozen=True)
class QuantParams:
    """Per-tensor quantization of an activation: real = scale · (code − zero_point).

    Tensors that share a scale share one object.
    """

    format: Format
    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be positive and finite, got {self.scale}")
        if not self.format.low <= self.zero_point <= self.format.high:
            raise ValueError(f"zero point {self.zero_point} lies outside {self.format}")

    @property
    def low(self) -> float:
        """Smallest representable real value."""
        return self.scale * (self.format.low - self.zero_point)

    @property
    def high(self) -> float:
        """Largest representable real value."""
        return self.scale * (self.format.high - self.zero_point)
