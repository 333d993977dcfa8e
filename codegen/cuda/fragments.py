"""Weights packed in the order of fragments, and their way back to bytes in the registers of a lane.

For 32 of the summed bytes a lane needs eight registers of four codes: two for each of a warp's four blocks of columns.
Codes of fewer than 8 bits are cut into planes of 4, 2 and 1 bits. A plane of p bits has p words for those registers, in
which the registers lie one above the other, so that a shift and a mask bring four codes at once.

Evenly spaced codes come in two's complement to the upper end of their byte: products are then a power of two too large,
which a shift of the sum takes back exactly. Of listed codes the planes hold places in the list, by half bytes, as prmt
takes them: it picks four codes out of eight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.cuda.results import ptx
from ptqc.codegen.program.constants import VALUES, values_of
from ptqc.formats.planes import planes_of

BYTE, HALF_BYTE, WORD = 8, 4, 32
LANES, REGISTERS, CODES = 32, 8, 4
# Codes of all lanes for 32 of the summed bytes.
UNIT = LANES * REGISTERS * CODES
# Sums of more products could leave int32 where the codes are too large by a power of two.
MOST_PRODUCTS = 2**31 // (255 * 128)
# Each byte is in its own place: what prmt adds 4 to where a code is in the upper half of a list.
OWN_PLACES = 0x32103210


class BitPlane(NamedTuple):
    """Some bits of all codes. below: bits of a code under them. first: the first word of a lane's."""

    width: int
    below: int
    first: int


@dataclass(frozen=True, eq=False)
class Coding:
    """How the codes of a layer are packed. levels: those that are listed (int8), if any; bits: of a code or place."""

    bits: int
    levels: np.ndarray | None = None
    shared_bytes = 0

    @classmethod
    def of(cls, codes: np.ndarray, products: int) -> "Coding":
        """What takes the fewest bits, and of two such the one that takes fewer instructions.

        codes: int8. products: summed for one result.
        """
        if products > MOST_PRODUCTS:
            return cls(BYTE)
        low, high = int(codes.min()), int(codes.max())
        even = next(bits for bits in range(1, BYTE + 1) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1))
        levels = values_of(codes)
        listed = max(1, (len(levels) - 1).bit_length())
        return cls(listed, levels) if len(levels) <= VALUES and listed < even else cls(even)

    @property
    def planes(self) -> tuple[int, ...]:
        """Words of a lane in each plane, which are its bits too; whole bytes lie in two parts of four words."""
        return planes_of(self.bits) or (HALF_BYTE, HALF_BYTE)

    @property
    def shift(self) -> int:
        """By how many bits the sums are too large."""
        return 0 if self.levels is not None else BYTE - self.bits

    @property
    def table(self) -> np.ndarray | None:
        """The listed codes as the kernel takes them."""
        return None if self.levels is None else np.resize(self.levels, VALUES).view(np.uint32)

    @property
    def instructions(self) -> int:
        """What it takes to unpack four codes."""
        if self.bits == BYTE:
            return 0
        planes = 2 * len(self.planes)
        return planes if self.levels is None else planes + (4 if self.bits == HALF_BYTE else 1)

    def pack(self, codes: np.ndarray) -> np.ndarray:
        """Bytes of int8 codes, whose last axes are lane, register and the four codes of a register."""
        lanes = codes.reshape(-1, LANES, REGISTERS, CODES)
        if self.bits == BYTE:
            parts = [lanes[:, :, first : first + HALF_BYTE] for first in (0, HALF_BYTE)]
        elif self.levels is None:
            parts = list(self._bytes(lanes.view(np.uint8)))
        else:
            places = np.searchsorted(self.levels, lanes)  # what fills up the last step and panel is any of them
            parts = list(self._half_bytes(np.minimum(places, len(self.levels) - 1)))
        flat = [np.ascontiguousarray(part).reshape(len(lanes), -1).view(np.uint8) for part in parts]
        return np.concatenate(flat, axis=1).reshape(-1)

    def _bytes(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        for width, below, _ in self._cut():
            piece = (codes >> below) & (2**width - 1)
            stacked = piece.reshape(len(codes), LANES, width, BYTE // width, CODES)
            shifts = np.arange(0, BYTE, width, dtype=np.uint8)[:, None]
            yield np.bitwise_or.reduce(stacked << shifts, axis=3)

    def _half_bytes(self, places: np.ndarray) -> Iterator[np.ndarray]:
        """Half bytes of a word are the codes of two registers."""
        for width, below, _ in self._cut():
            piece = ((places >> below) & (2**width - 1)).astype(np.uint32)
            stacked = piece.reshape(len(places), LANES, width, HALF_BYTE // width, 2 * CODES)
            shifts = np.add.outer(np.arange(0, HALF_BYTE, width), np.arange(0, WORD, HALF_BYTE)).astype(np.uint32)
            yield np.bitwise_or.reduce(stacked << shifts, axis=(3, 4))

    def _cut(self) -> list[BitPlane]:
        return cut(self.bits, self.planes, self.planes)

    def prepare(self, constants: Sequence[Any], _number: Any, _threads: int) -> Any:
        """The list in registers."""
        made = T.alloc_buffer((VALUES // CODES,), "uint32", scope="local")
        for i in range(VALUES // CODES):
            T.buffer_store(made, constants[0][i], [i])
        return made

    def load(self, packed: Any, address: Any, lane: Any) -> None:
        """All words of a lane out of shared memory. address: of a byte of this unit."""
        load_words(self.planes, packed, address, lane)

    def unpack(self, packed: Any, table: Any, made: Any, block: int) -> None:
        """The two registers of a block of columns."""
        if self.levels is not None:
            self._pick(packed, table, made, block)
            return
        planes = self._cut()
        for i in range(2):
            register = 2 * block + i
            whole = self.bits == BYTE
            word = packed[register] if whole else joined(packed, planes, BYTE, register, BYTE - self.bits)
            T.buffer_store(made, word, [i])

    def _pick(self, packed: Any, table: Any, made: Any, block: int) -> None:
        places = T.Bind(joined(packed, self._cut(), HALF_BYTE, block))
        if self.bits < HALF_BYTE:
            for i in range(2):
                ptx("prmt.b32", made[i], table[0], table[1], moved(places, -16 * i))
            return
        halves = T.alloc_buffer((2,), "uint32", scope="local")
        lower = T.Bind(T.bitwise_and(places, T.uint32(0x77777777)))
        upper = T.bitwise_or(T.bitwise_and(moved(places, -1), T.uint32(0x44444444)), T.uint32(OWN_PLACES))
        upper = T.Bind(upper)
        for i in range(2):
            for half in range(2):
                ptx("prmt.b32", halves[half], table[2 * half], table[2 * half + 1], moved(lower, -16 * i))
            ptx("prmt.b32", made[i], halves[0], halves[1], moved(upper, -16 * i))


def cut(bits: int, widths: Sequence[int], words: Sequence[int]) -> list[BitPlane]:
    """Planes of codes of so many bits, of which a lane has so many words each."""
    below = [bits - end for end in accumulate(widths)]
    return list(map(BitPlane, widths, below, accumulate(words, initial=0)))


def load_words(words: Sequence[int], packed: Any, address: Any, lane: Any) -> None:
    """A lane's words of each plane out of shared memory, where those of all lanes lie one after the other."""
    for count, first in zip(words, accumulate(words[:-1], initial=0), strict=True):
        name = "ld.shared.b32" if count == 1 else f"ld.shared.v{count}.b32"
        ptx(name, *(packed[first + i] for i in range(count)), address((first * LANES + lane * count) * CODES))


def joined(packed: Any, planes: Sequence[BitPlane], room: int, register: int, up: int = 0) -> Any:
    """The bits of a register's codes, one in each byte or half byte (`room` bits), `up` bits above its lower end."""
    made: Any = None
    for width, below, first in planes:
        word, place = divmod(register * width, room)
        mask = sum((2**width - 1) << below + up + start for start in range(0, WORD, room))
        piece = T.bitwise_and(moved(packed[first + word], below + up - place), T.uint32(mask))
        made = piece if made is None else T.bitwise_or(made, piece)
    return made


def moved(word: Any, by: int) -> Any:
    """A word moved upwards by so many bits."""
    if by == 0:
        return word
    return T.shift_left(word, T.uint32(by)) if by > 0 else T.shift_right(word, T.uint32(-by))
