"""Weights of which pairs of neighbouring inputs are listed, as vector codebooks have them: looked up in shared memory.

At most 256 pairs make a table of half a kilobyte in the shared memory of a block. For 32 of the summed bytes a lane has
16 places in it, packed in planes of 4 and 2 bits as `fragments.py` packs codes; a place is looked up in one access, of
up to 64 pairs without bank conflicts. Neighbours in the model's weight are neighbours in the sum where the window is
one pixel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.fragments import (
    BYTE,
    CODES,
    HALF_BYTE,
    LANES,
    REGISTERS,
    BitPlane,
    cut,
    joined,
    load_words,
)

MOST_PAIRS, BOTH = 256, np.uint16
PLACES = REGISTERS * CODES // 2
# Besides shifts and masks: an access takes as long as two instructions with integers.
LOOKED_UP = 10


@dataclass(frozen=True, eq=False)
class PairCoding:
    """See `Coding`, whose methods it has. pairs: those that occur, as 16 bits each, in ascending order."""

    pairs: np.ndarray
    shift = 0

    @classmethod
    def of(cls, codes: np.ndarray) -> "PairCoding | None":
        """The pairs of int8 codes (outputs, inputs, 1, 1); None where there are too many, or codes without another."""
        if codes.shape[1] % 2 or codes[0, 0].size > 1:
            return None
        found = np.unique(np.ascontiguousarray(codes).reshape(-1).view(BOTH))
        return cls(found) if len(found) <= MOST_PAIRS else None

    @property
    def place_bits(self) -> int:
        """Of a place, an even number."""
        return max(2, -(-(len(self.pairs) - 1).bit_length() // 2) * 2)

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.place_bits // 2

    @property
    def table(self) -> np.ndarray:
        """All pairs, and the first ones once more where places are left."""
        return np.resize(self.pairs, 2**self.place_bits)

    @property
    def shared_bytes(self) -> int:
        """Of the table."""
        return int(self.table.nbytes)

    @property
    def instructions(self) -> int:
        """What it takes to unpack four codes."""
        return len(self._planes()) + LOOKED_UP

    @property
    def _words(self) -> tuple[int, ...]:
        """Words of a lane in each plane; places of 8 bits lie as they are."""
        return (HALF_BYTE,) if self.place_bits == BYTE else tuple(width // 2 for width, *_ in self._planes())

    def _planes(self) -> list[BitPlane]:
        widths = [width for width in (4, 2) if self.place_bits & width] or [BYTE]
        return cut(self.place_bits, widths, [width // 2 for width in widths])

    def pack(self, codes: np.ndarray) -> np.ndarray:
        """Bytes of int8 codes, whose last axes are lane, register and the four codes of a register."""
        both = np.ascontiguousarray(codes).reshape(-1, LANES, PLACES, 2).view(BOTH)[..., 0]
        places = np.minimum(np.searchsorted(self.pairs, both), len(self.pairs) - 1)  # those that fill up are any
        flat = [part.reshape(len(both), -1) for part in self._parts(places.astype(np.uint8))]
        return np.concatenate(flat, axis=1).reshape(-1)

    def _parts(self, places: np.ndarray) -> Iterator[np.ndarray]:
        for width, below, _ in self._planes():
            piece = (places >> below) & (2**width - 1)
            stacked = piece.reshape(len(places), LANES, width // 2, BYTE // width, CODES)
            shifts = np.arange(0, BYTE, width, dtype=np.uint8)[:, None]
            yield np.bitwise_or.reduce(stacked << shifts, axis=3)

    def prepare(self, constants: Sequence[Any], number: Any, threads: int) -> Any:
        """The table in shared memory; the block's first barrier comes before it is read."""
        size = 2**self.place_bits
        made = T.alloc_buffer((size,), "uint16", scope="shared")
        for first in range(0, size, threads):
            index = T.Bind(first + number)
            with T.If(index < size), T.Then():
                T.buffer_store(made, constants[0][index], [index])
        return made

    def load(self, packed: Any, address: Any, lane: Any) -> None:
        """All words of a lane out of shared memory. address: of a byte of this unit."""
        load_words(self._words, packed, address, lane)

    def unpack(self, packed: Any, table: Any, made: Any, block: int) -> None:
        """The two registers of a block of columns."""
        whole = self.place_bits == BYTE
        places = T.Bind(packed[block] if whole else joined(packed, self._planes(), BYTE, block))
        for i in range(2):
            pair = [self._pair(places, table, 2 * i + half) for half in range(2)]
            T.buffer_store(made, T.bitwise_or(pair[0], T.shift_left(pair[1], T.uint32(16))), [i])

    def _pair(self, places: Any, table: Any, byte: int) -> Any:
        place = T.bitwise_and(T.shift_right(places, T.uint32(BYTE * byte)), T.uint32(2**BYTE - 1))
        return T.Cast("uint32", table[T.reinterpret("int32", place)])
