"""Vector codebooks: each index stands for the codes of two neighbouring weights of a channel.

They gain another decibel over codebooks of single codes at the same bytes, and have half bits. (Linde, Buzo and Gray
1980; for weights van Baalen et al. 2024, GPTVQ, arXiv 2402.15319.)
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ptqc.formats.base import Scaled
from ptqc.formats.codebook import Codebook

BITS = range(3, 9)


class VectorCodebook(Codebook):
    """pairs3 to pairs8: a codebook of 2^bits pairs of codes; plans call them pairs."""

    family = "pairs"
    mark: ClassVar[str] = "d"
    group: ClassVar[int] = 2

    @classmethod
    def members(cls) -> Iterable["VectorCodebook"]:
        """All formats of the family."""
        return map(cls, BITS)

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """Those of at least the narrowest and at most the widest bits per weight."""
        return [cls(bits) for bits in BITS if 2 * min(widths) - 1 <= bits <= 2 * max(widths)]
