"""Entropy codes: evenly spaced codes within ±63, of which frequent ones take fewer bits in the file than rare ones.

A grid of b bits spends them on every weight, whether it lies in the middle, where most do, or at the end of the range.
Here the step of the grid is chosen for the entropy that the codes are to have, not for the range: an outlier costs bits
of its own only, as long as it lies within 63 steps (16 deviations in entropy4, 4 in entropy6), and heavy tails take
nothing from the precision of the others. At high rates such a grid is 0.25 bit from the rate-distortion bound (Gish and
Pierce 1968, Asymptotically efficient quantizing).

A codeword begins with its class, which has 4 bits and says how many bits follow. Where these begin is then a running
sum, so that standard operators find all weights at once, without a loop. Classes hold 1, 2, 4, … codes, the frequent
ones first, so that all codewords together are shortest; a Huffman code would save another 0.02 to 0.15 bit.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.errors import InternalError
from ptqc.formats import scales
from ptqc.formats.base import Format, Grid, HalfBits, Nodes, Scaled, V, stand_in
from ptqc.formats.codebook import Codebook
from ptqc.formats.levels import DEAD, REACH
from ptqc.formats.planes import far_bits
from ptqc.formats.trellis import RowTrellis, Trellis
from ptqc.formats.uniform import Integer
from ptqc.formats.vector_codebook import VectorCodebook

# Of the entropy of two weights. The last one has the scales of least error of codes of 7 bits.
BITS = (8, 9, 10, 11, 12, 14)
FINEST = BITS[-1]
# Entropy of a normal distribution that is rounded to steps of its deviation (Cover and Thomas 2006, theorem 8.3.1).
BITS_OF_A_STEP = 0.5 * float(np.log2(2 * np.pi * np.e))
CLASS_BITS = 4
CLASSES = 1 << CLASS_BITS
# How many bits may follow a class, and how many codes such a class holds.
MOST_FURTHER = 7
SIZES = 1 << np.arange(MOST_FURTHER + 1)
# Classes are stored in two rows, with a byte for one of each.
ROWS = 2
BYTES = CLASSES**ROWS  # values of one
# In smaller models the function takes what the codes save; in smaller weights what tells the classes does.
ENOUGH_NUMBERS, ENOUGH_WEIGHTS, MANY_WEIGHTS = 2**15, 2**12, 2**14
FIXED_LENGTH: tuple[Format, ...] = (
    *map(Integer, (5, 6, 7)),
    Codebook(4),
    VectorCodebook(8),
    Trellis(10),
    RowTrellis(10),
)
# ONNX Runtime takes some 60 bytes for each number when it loads a file, in place of 10 to 40.
MOST_NUMBERS = 2**26
# The codes by size, then zeros as far as the last classes may reach.
BY_SIZE = np.zeros(2 * REACH + 1 + SIZES[-1] + CLASSES, np.int8)
BY_SIZE[1 : 2 * REACH : 2], BY_SIZE[2 : 2 * REACH + 1 : 2] = np.arange(1, REACH + 1), -np.arange(1, REACH + 1)


class Entropy(HalfBits):
    """entropy4 to entropy7. bits: of the entropy of two weights, where these have a normal distribution."""

    family = "entropy"
    mark: ClassVar[str] = "z"
    is_regular: ClassVar[bool] = False
    by_rate: ClassVar[bool] = True
    from_numbers: ClassVar[int] = ENOUGH_NUMBERS

    @classmethod
    def members(cls) -> Iterable["Entropy"]:
        """All formats of the family."""
        return map(cls, BITS)

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """Those of at least the narrowest and at most the widest bits per weight."""
        return [cls(bits) for bits in BITS if 2 * min(widths) <= bits <= 2 * max(widths)]

    @classmethod
    def suits_model(cls, numbers: int) -> bool:
        """Whether a model has enough numbers, and not so many that unpacking them takes too much memory."""
        return super().suits_model(numbers) and numbers <= MOST_NUMBERS

    def least_bits(self, rows: np.ndarray) -> float:  # noqa: ARG002
        """Those of a class."""
        return CLASS_BITS

    @classmethod
    def suits(cls, rows: np.ndarray) -> bool:
        """Whether there are enough of them."""
        return rows.size >= ENOUGH_WEIGHTS

    @classmethod
    def superseded(cls, rows: np.ndarray, tried: Collection[Format]) -> Collection[Format]:
        """Those with as many bits for every weight, where there are so many that what tells the classes is little."""
        narrow, wide = (pick(form.bits for form in tried) / 2 for pick in (min, max))
        is_between = rows.size >= MANY_WEIGHTS
        return [form for form in FIXED_LENGTH if is_between and narrow <= form.bits_per_weight <= wide]

    @property
    def unpacked_as(self) -> Format:
        """One function unpacks all."""
        return Entropy(BITS[0])

    @staticmethod
    def nearest(ratio: np.ndarray) -> np.ndarray:
        """The nearest code (as float) to weight / scale."""
        return np.asarray(np.clip(np.rint(ratio), -REACH, REACH))

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """Scales by the deviation of each row; where codes do not reach far enough, at least those of least error.

        Rows of equal scales would have the least error in all, and rows of scales in proportion to their deviation the
        same signal to noise. In between networks lose least.
        """
        largest = np.abs(rows).max(-1, initial=0.0)
        scale = np.zeros(largest.shape)
        if self.bits != FINEST:
            deviation = np.sqrt(np.square(rows, dtype=np.float64).mean(-1))
            live = deviation[deviation > DEAD * deviation.max(initial=0.0)]
            usual = np.exp(np.log(live).mean()) if live.size else 0.0
            scale = np.sqrt(deviation * usual) * 2 ** (BITS_OF_A_STEP - self.bits_per_weight)
        if (largest > (REACH + 0.5) * scale).any():
            scale = np.maximum(scale, scales.search(rows, importance, self.nearest, REACH + 0.5))
        lowest = 0.0 if keeps_sign else -np.inf

        def nearest(ratio: np.ndarray, _metric: np.ndarray | None) -> np.ndarray:
            return self.nearest(np.maximum(ratio, lowest))

        return Grid(scales.storable(scale, largest), 1, nearest, by_rate=True)

    def levels(self, codes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """All codes within reach."""
        return np.arange(-REACH, REACH + 1, dtype=np.float32)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Classes in two rows, a byte for one of each; the bits that follow, of each row; `PrefixCode`; the scales."""
        rows = self._rows(codes)
        code = PrefixCode.of(rows)
        classes, size = code.classes[rows.view(np.uint8)], code.most_bits(rows)
        return [
            classes[0] | classes[1] << CLASS_BITS,
            np.stack([code.further(row, size) for row in rows])[:, None],
            code.widths[:, None],
            code.codes,
            scale,
        ]

    def sized(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """What `pack` gives, without the bits."""
        rows = self._rows(codes)
        code = PrefixCode.of(rows)
        size = -(-code.most_bits(rows) // 8)
        further = stand_in(codes, ROWS * size).reshape(ROWS, 1, size)
        return [stand_in(codes, rows.shape[1]), further, code.widths[:, None], code.codes, scale]

    def is_padded(self, size: int) -> bool:
        """Whether a row has a 0 at the end."""
        return size % ROWS != 0

    def _rows(self, codes: np.ndarray) -> np.ndarray:
        """Codes in two rows, with a 0 at the end where they are an odd number. Raises InternalError beyond ±63."""
        rows = np.pad(codes.ravel(), (0, -codes.size % ROWS)).reshape(ROWS, -1)
        if rows.size and max(-int(rows.min()), int(rows.max())) > REACH:
            raise InternalError(f"a code of {self} is beyond {REACH}")
        return rows

    @property
    def shared(self) -> Mapping[str, np.ndarray]:
        """The codes by size."""
        return {"codes by size": BY_SIZE}

    def planes(self) -> list[str]:
        """Short names of what holds the classes and what follows them."""
        return ["p", "q"]

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        return [*self.planes(), "e", "v", "s"]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """A table has a stretch for each class, with a code for whatever the next bits are, also of the next weight.

        GatherElements takes single numbers three times as fast as Gather, from tables of as many rows as there are
        indices.
        """
        last, rows = nodes.constant(3, np.int32), nodes.constant([1, ROWS, 1, -1], np.int64)
        width_of = nodes.add("Expand", [nodes.array("e"), nodes.constant([ROWS, 1, SIZES[-1]], np.int64)])
        width_of = nodes.add("Reshape", [nodes.add("Cast", [width_of], to=ir.DataType.INT32), rows])
        # A class of 2^k codes takes 2^k / 128 of a step at each of its 128 places.
        steps = nodes.add("Gather", [nodes.constant(SIZES, np.int32), width_of])
        steps = nodes.add("CumSum", [steps, last], exclusive=1)
        steps = nodes.add("Div", [steps, nodes.constant(SIZES[-1], np.int32)])
        table = nodes.add("Gather", [nodes.array("v"), steps])

        # Where the stretch of each class begins: rows are channels.
        masks, factors = CLASSES ** np.arange(ROWS) * (CLASSES - 1), SIZES[-1] // CLASSES ** np.arange(ROWS)
        classes = nodes.add("BitwiseAnd", [nodes.array("p"), nodes.constant(masks.reshape(1, ROWS, 1, 1), np.uint8)])
        factors = nodes.constant(factors.reshape(ROWS, 1, 1, 1), np.uint8)
        stretch = nodes.add("ConvInteger", [classes, factors], group=ROWS)
        widths = nodes.add("GatherElements", [width_of, stretch], axis=3)
        start = nodes.add("CumSum", [widths, last], exclusive=1)
        bits = nodes.add("Reshape", [nodes.single_bits("q"), rows])
        next_bits = np.tile(SIZES[-2::-1], (ROWS, 1, 1, 1))
        window = nodes.add("ConvInteger", [bits, nodes.constant(next_bits, np.uint8)], group=ROWS)
        window = nodes.add("GatherElements", [window, start], axis=3)
        codes = nodes.add("GatherElements", [table, nodes.add("Add", [stretch, window])], axis=3)
        codes = nodes.trimmed(codes)
        return codes if to == ir.DataType.INT8 else nodes.add("Cast", [codes], to=to)


@dataclass(frozen=True, eq=False)
class PrefixCode:
    """Codewords. widths (CLASSES,): of the bits that follow each class; codes: of all classes, one after the other."""

    widths: np.ndarray
    codes: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, most: int = MOST_FURTHER, saved: float = 0.0) -> "PrefixCode":
        """The one of the fewest bits: of codes by size, or by frequency where that saves more than its list takes.

        most: bits that may follow a class. saved: share of all bits that an order by frequency has to save.
        """
        counts = np.bincount(codes.view(np.uint8).reshape(-1), minlength=BYTES)
        by_size = counts[BY_SIZE[: 2 * REACH + 1].view(np.uint8)]
        usual, bits = _shortest(np.trim_zeros(by_size, "b"), most)
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        ordered, ordered_bits = _shortest(counts[order], most)
        length = int(SIZES[ordered].sum())
        every = CLASS_BITS * codes.size
        if by_size.sum() == counts.sum() and ordered_bits + 8 * length + every >= (bits + every) * (1 - saved):
            return cls(usual, BY_SIZE)
        return cls(ordered, np.resize(order, length).astype(np.uint8).view(np.int8))

    @cached_property
    def places(self) -> np.ndarray:
        """Where each code stands in the list, by its byte."""
        result = np.zeros(BYTES, np.int64)
        result[self.codes[::-1].view(np.uint8)] = np.arange(len(self.codes))[::-1]  # of equal codes the first
        return result

    @cached_property
    def first(self) -> np.ndarray:
        """Where the codes of each class begin in the list."""
        return np.asarray(np.cumsum(SIZES[self.widths]) - SIZES[self.widths])

    @cached_property
    def classes(self) -> np.ndarray:
        """The class of each code, uint8, by its byte."""
        return np.asarray(np.searchsorted(self.first, self.places, "right") - 1, np.uint8)

    def most_bits(self, rows: np.ndarray) -> int:
        """Bits that follow the classes of the longer row, with those that make the last window a whole one."""
        counts = [np.bincount(row.view(np.uint8), minlength=BYTES) for row in rows]
        return max(int(count @ self.widths[self.classes]) for count in counts) + MOST_FURTHER

    def further(self, row: np.ndarray, size: int) -> np.ndarray:
        """The bits that follow the classes of codes (n,), the highest of each first, in bytes of so many bits."""
        index = row.view(np.uint8)
        offsets = (self.places - self.first[self.classes]).astype(np.uint8)[index]
        widths = self.widths[self.classes][index]
        end = np.cumsum(widths, dtype=np.int64)
        bits = np.zeros(size, np.uint8)
        for number in range(MOST_FURTHER):
            has = widths > number
            bits[end[has] - 1 - number] = (offsets[has] >> number) & 1
        return far_bits(bits)


def _shortest(counts: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """Bits that follow each class so that all of them are fewest, uint8, and that number. counts: of codes in order.

    A dynamic program: least[n] of the first n codes in as many classes as were added. Classes that are not needed hold
    what is behind the last code.
    """
    codes, sizes = len(counts), SIZES[: most + 1]
    before = np.pad(np.cumsum([0, *counts]), (0, SIZES[-1] + CLASSES), mode="edge").astype(np.float64)
    places = np.arange(len(before))
    origin = places - sizes[:, None]
    cost = np.where(origin >= 0, np.arange(len(sizes))[:, None] * (before - before[origin]), np.inf)
    least, last = np.where(places == 0, 0.0, np.inf), []
    for _ in range(CLASSES):
        sums = least[origin] + cost
        last.append(sums.argmin(0))
        least = sums.min(0)
    place = codes + int(least[codes:].argmin())
    text, result = int(least[place]), np.zeros(CLASSES, np.uint8)
    for number in reversed(range(CLASSES)):
        result[number] = last[number][place]
        place -= SIZES[result[number]]
    return result, text
