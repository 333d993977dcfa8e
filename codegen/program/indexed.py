"""How int8 codes lie in the library: as indices of few bits into evenly spaced codes, or into listed ones.

Where many codes are zero, a bit for each tells which, and only the others have indices.
"""

from dataclasses import dataclass

import numpy as np

from ptqc.formats import planes

MOST_LEVELS = 256
KEYS = {1: np.uint8, 2: np.uint16}
# Codes for which it is stored how many before them are not zero, so that each such part is unpacked for itself.
SPAN = 1024
# Bits of an index behind zeros: 0 is the zero's own, and all of them are to fit a byte.
MOST_NONZERO_BITS = 7
# Of the bytes without them, what bits for zeros take at most: loading takes longer with them.
WORTH = 0.9


@dataclass(frozen=True, eq=False)
class NonzeroMask:
    """Which codes are not zero. bits: a plane of one bit for each code. starts: of each SPAN, how many before it."""

    bits: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray) -> "NonzeroMask":
        """Of flat codes."""
        is_kept = codes != 0
        count = np.cumsum(is_kept)
        starts = np.concatenate([[0], count[SPAN - 1 :: SPAN]])[: -(-codes.size // SPAN)]
        return cls(planes.pack(is_kept, 1)[0], starts.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.bits.nbytes + self.starts.nbytes


@dataclass(frozen=True, eq=False)
class Indexed:
    """planes: of indices of `bits` bits, or the indices themselves where they have 8.

    levels (K, group): the codes that each index stands for; without them index i is the code i − 2^(bits − 1).
    nonzero: the indices are those of codes that are not zero, and begin behind the first level, which is zero.
    """

    bits: int
    planes: tuple[np.ndarray, ...]
    levels: np.ndarray | None = None
    nonzero: NonzeroMask | None = None

    @property
    def group(self) -> int:
        """Codes of an index."""
        return 1 if self.levels is None else self.levels.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        parts = [*self.planes, *([] if self.levels is None else [self.levels])]
        return sum(part.nbytes for part in parts) + (0 if self.nonzero is None else self.nonzero.nbytes)


def smallest(codes: np.ndarray) -> Indexed:
    """What takes the fewest bytes; pairs are neighbours in memory."""
    flat = np.ascontiguousarray(codes, np.int8).reshape(-1)
    listed = [_listed(flat, group) for group in KEYS if flat.size and flat.size % group == 0]
    dense = min([_even(flat), *(result for result in listed if result is not None)], key=lambda result: result.nbytes)
    behind = _behind_zeros(flat)
    return dense if behind is None or behind.nbytes > WORTH * dense.nbytes else behind


def _even(codes: np.ndarray) -> Indexed:
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    bits = next(bits for bits in range(1, 9) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1))
    return _indexed((codes.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8), bits)


def _listed(codes: np.ndarray, group: int) -> Indexed | None:
    """Indices into the codes or pairs that occur; None where those are too many."""
    keys = codes.view(KEYS[group])
    occurs = np.bincount(keys, minlength=MOST_LEVELS**group) > 0
    count = int(occurs.sum())
    if count > MOST_LEVELS:
        return None
    levels = np.flatnonzero(occurs).astype(keys.dtype).view(np.int8).reshape(-1, group)
    rank = (np.cumsum(occurs) - 1).astype(np.uint8)
    return _indexed(rank[keys], max(1, (count - 1).bit_length()), levels)


def _behind_zeros(codes: np.ndarray) -> Indexed | None:
    """Indices of what is not zero; None where nothing or everything is, or where it takes too many values."""
    remaining = codes[codes != 0]
    result = _listed(remaining, 1) if 0 < remaining.size < codes.size else None
    if result is None or result.levels is None or result.bits > MOST_NONZERO_BITS:
        return None
    levels = np.concatenate([np.zeros((1, 1), np.int8), result.levels])
    return Indexed(result.bits, result.planes, levels, NonzeroMask.of(codes))


def _indexed(index: np.ndarray, bits: int, levels: np.ndarray | None = None) -> Indexed:
    return Indexed(bits, planes.pack(index, bits) or (index,), levels)
