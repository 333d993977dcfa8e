"""How int8 codes lie in the library: as indices of few bits into evenly spaced codes, or into listed ones."""

from dataclasses import dataclass

import numpy as np

from ptqc.formats import planes

MOST_LEVELS = 256
KEYS = {1: np.uint8, 2: np.uint16}


@dataclass(frozen=True, eq=False)
class Indexed:
    """planes: of indices of `bits` bits, or the indices themselves where they have 8.

    levels (K, group): the codes that each index stands for; without them index i is the code i − 2^(bits − 1).
    """

    bits: int
    planes: tuple[np.ndarray, ...]
    levels: np.ndarray | None = None

    @property
    def group(self) -> int:
        """Codes of an index."""
        return 1 if self.levels is None else self.levels.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(plane.nbytes for plane in self.planes) + (0 if self.levels is None else self.levels.nbytes)


def smallest(codes: np.ndarray) -> Indexed:
    """What takes the fewest bytes; pairs are neighbours in memory."""
    flat = np.ascontiguousarray(codes, np.int8).reshape(-1)
    listed = [_listed(flat, group) for group in KEYS if flat.size and flat.size % group == 0]
    return min([_even(flat), *(found for found in listed if found is not None)], key=lambda found: found.nbytes)


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


def _indexed(index: np.ndarray, bits: int, levels: np.ndarray | None = None) -> Indexed:
    return Indexed(bits, planes.pack(index, bits) or (index,), levels)
