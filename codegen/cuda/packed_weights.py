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
        target = T.alloc_buffer((VALUES // CODES,), "uint32", scope="local")
        for i in range(VALUES // CODES):
            T.buffer_store(target, constants[0][i], [i])
        return target

    def load(self, packed: Any, address: Any, lane: Any) -> None:
        """All words of a lane out of shared memory. address: of a byte of this unit."""
        load_words(self.planes, packed, address, lane)

    def unpack(self, packed: Any, table: Any, target: Any, block: int) -> None:
        """The two registers of a block of columns."""
        if self.levels is not None:
            self._pick(packed, table, target, block)
            return
        planes = self._cut()
        for i in range(2):
            register = 2 * block + i
            whole = self.bits == BYTE
            word = packed[register] if whole else joined(packed, planes, BYTE, register, BYTE - self.bits)
            T.buffer_store(target, word, [i])

    def _pick(self, packed: Any, table: Any, target: Any, block: int) -> None:
        places = T.Bind(joined(packed, self._cut(), HALF_BYTE, block))
        if self.bits < HALF_BYTE:
            for i in range(2):
                ptx("prmt.b32", target[i], table[0], table[1], moved(places, -16 * i))
            return
        halves = T.alloc_buffer((2,), "uint32", scope="local")
        lower = T.Bind(T.bitwise_and(places, T.uint32(0x77777777)))
        upper = T.bitwise_or(T.bitwise_and(moved(places, -1), T.uint32(0x44444444)), T.uint32(OWN_PLACES))
        upper = T.Bind(upper)
        for i in range(2):
            for half in range(2):
                ptx("prmt.b32", halves[half], table[2 * half], table[2 * half + 1], moved(lower, -16 * i))
            ptx("prmt.b32", target[i], halves[0], halves[1], moved(upper, -16 * i))


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
    target: Any = None
    for width, below, first in planes:
        word, place = divmod(register * width, room)
        mask = sum((2**width - 1) << below + up + start for start in range(0, WORD, room))
        piece = T.bitwise_and(moved(packed[first + word], below + up - place), T.uint32(mask))
        target = piece if target is None else T.bitwise_or(target, piece)
    return target


def moved(word: Any, by: int) -> Any:
    """A word moved upwards by so many bits."""
    if by == 0:
        return word
    return T.shift_left(word, T.uint32(by)) if by > 0 else T.shift_right(word, T.uint32(-by))


# Weights of which pairs of neighbouring inputs are listed, as vector codebooks have them: looked up in shared memory.
#
# At most 256 pairs make a table of half a kilobyte in the shared memory of a block. For 32 of the summed bytes a lane
# has 16 places in it, packed in planes of 4 and 2 bits as `packed_weights.py` packs codes; a place is looked up in one
# access, of up to 64 pairs without bank conflicts. Neighbours in the model's weight are neighbours in the sum where
# the window is one pixel.

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
        result = np.unique(np.ascontiguousarray(codes).reshape(-1).view(BOTH))
        return cls(result) if len(result) <= MOST_PAIRS else None

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
        target = T.alloc_buffer((size,), "uint16", scope="shared")
        for first in range(0, size, threads):
            index = T.Bind(first + number)
            with T.If(index < size), T.Then():
                T.buffer_store(target, constants[0][index], [index])
        return target

    def load(self, packed: Any, address: Any, lane: Any) -> None:
        """All words of a lane out of shared memory. address: of a byte of this unit."""
        load_words(self._words, packed, address, lane)

    def unpack(self, packed: Any, table: Any, target: Any, block: int) -> None:
        """The two registers of a block of columns."""
        whole = self.place_bits == BYTE
        places = T.Bind(packed[block] if whole else joined(packed, self._planes(), BYTE, block))
        for i in range(2):
            pair = [self._pair(places, table, 2 * i + half) for half in range(2)]
            T.buffer_store(target, T.bitwise_or(pair[0], T.shift_left(pair[1], T.uint32(16))), [i])

    def _pair(self, places: Any, table: Any, byte: int) -> Any:
        place = T.bitwise_and(T.shift_right(places, T.uint32(BYTE * byte)), T.uint32(2**BYTE - 1))
        return T.Cast("uint32", table[T.reinterpret("int32", place)])


# FP8 (E4M3) on a GPU: instructions where a chip has them, the same numbers without them elsewhere.
#
# Chips from compute capability 8.9 on round to FP8 and multiply it. For older ones nvcc compiles the other branch: a
# code becomes float16 by moving its bits, 2⁻⁸ too small (the exponent's bias is 15 there and 7 here), which is exact
# for all codes but those of NaN; products of float16 are exact in float32, and 2¹⁶ takes both factors back.

_CODE = """
// The nearest code, halves to even; 448 beyond it; 127 of what is no number.
__forceinline__ __device__ unsigned char ptqc_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
  return both;
#else
  const unsigned bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
  if (size > 0x7F800000u) return 0x7F;
  if (size >= 0x43E00000u) return sign | 0x7E;                                        // from 448 on
  if (size < 0x3C800000u) return sign | __float2uint_rn(__uint_as_float(size) * 512.0f);  // steps of 2^-9 below 2^-6
  return sign | ((size + 0x7FFFFu + (size >> 20 & 1u) >> 20) - (120u << 3));
#endif
}
"""
_PRODUCTS = """
#if __CUDA_ARCH__ < 890
// Two of four codes as float16, 2^-8 too small: `which` puts them into the upper bytes of both.
__forceinline__ __device__ unsigned ptqc_e4m3_pair(unsigned four, unsigned which) {
  const unsigned moved = __byte_perm(four, 0, which);
  return moved & 0x80008000u | moved >> 1 & 0x3F803F80u;
}
__forceinline__ __device__ void ptqc_add_half_products(float (&d)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned lower = 0x1404, upper = 0x3424;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(ptqc_e4m3_pair(a0, lower)), "r"(ptqc_e4m3_pair(a1, lower)), "r"(ptqc_e4m3_pair(a0, upper)),
        "r"(ptqc_e4m3_pair(a1, upper)), "r"(ptqc_e4m3_pair(b, lower)), "r"(ptqc_e4m3_pair(b, upper)));
}
#endif
// c += a · b of a warp, with a (16, 32) and b (32, 8).
__forceinline__ __device__ void ptqc_add_e4m3_products(
    float& c0, float& c1, float& c2, float& c3,
    unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if __CUDA_ARCH__ >= 890
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  const float scale = 1.0f;
#else
  ptqc_add_half_products(d, a0, a1, b0);
  ptqc_add_half_products(d, a2, a3, b1);
  const float scale = 65536.0f;
#endif
  c0 = __fmaf_rn(d[0], scale, c0);
  c1 = __fmaf_rn(d[1], scale, c1);
  c2 = __fmaf_rn(d[2], scale, c2);
  c3 = __fmaf_rn(d[3], scale, c3);
}
"""


def code(value: Any) -> Any:
    """The code (uint8) nearest to a float32, halves to even, beyond 448 that of 448."""
    return T.cuda.func_call("ptqc_e4m3", value, source_code=_CODE, return_type="uint8")


def add_products(sums: Sequence[Any], inputs: Sequence[Any], weights: Sequence[Any]) -> None:
    """Products of a warp, 16 rows and 8 columns of 32 numbers each, added to its sums (float32).

    The tensor core sums them from zero, since it keeps few digits of what it sums; their sum is added as float32.
    """
    T.evaluate(T.cuda.func_call("ptqc_add_e4m3_products", *sums, *inputs, *weights, source_code=_PRODUCTS))
