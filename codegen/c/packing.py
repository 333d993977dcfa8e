"""Weights as they lie in flash: bytes that are unpacked row by row, and how.

A row is what one output channel multiplies, in the order in which a kernel reads it. The integers are those of the ONNX
file; how they are packed is not: of all packings that a weight can have, it gets the smallest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ptqc.formats import Format, VectorCodebook
from ptqc.formats.entropy import BY_SIZE, CLASS_BITS, PrefixCode
from ptqc.formats.levels import indices
from ptqc.formats.trellis import STATE_BITS, STORED_TABLE, Trellis, step_search

WORD_BITS = 8
READ_AHEAD = 4
# Bytes behind a row that unpacking it may overwrite.
WRITTEN_AHEAD = 3
# Unpacking a weight takes 3 to 11 instructions on a Cortex-M4, and multiplying it two for each pixel: for a little
# flash it is not worth it, and less so where a matrix meets one pixel.
SAVED, SAVED_OF_MATRIX = 1 / 8, 1 / 4
# Four indices are in one word. Of 7 bits they would not save an eighth.
MOST_INDEX_BITS = 6
# Behind a class of a prefix code: so that those of four codes are in one word.
MOST_BITS = 6
# What a list of codes has to save of the bits of a prefix code: looking them up takes half as long again.
SAVED_BY_LIST = 1 / 64
HEADER_BYTES = 4


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """One weight in flash.

    kind: which function of C unpacks it. data, table: its bytes. widths: of the bits behind each class of a prefix
    code. low, step: of evenly spaced codes without a table. taps: of a window, where pairs are in the order of the
    model.
    """

    kind: str
    data: np.ndarray
    row: int
    bits: int = 8
    table: np.ndarray | None = None
    widths: np.ndarray | None = None
    low: int = 0
    step: int = 1
    taps: int = 1

    RAW: ClassVar[str] = "raw"

    @property
    def is_raw(self) -> bool:
        """Whether kernels read it where it lies."""
        return self.kind == self.RAW

    def unpacked(self, rows: int) -> int:
        """Bytes of memory that so many rows take."""
        return 0 if self.is_raw else rows * self.row + WRITTEN_AHEAD

    @property
    def tables(self) -> list[np.ndarray]:
        """What it reads beside its bytes; equal ones lie in flash once."""
        return [array for array in (self.table, self.widths) if array is not None]

    @property
    def bytes(self) -> int:
        """Of flash, tables included."""
        return int(self.data.nbytes + sum(array.nbytes for array in self.tables))


@dataclass
class BitWriter:
    """Numbers of some bits one after the other, the lowest bit first."""

    parts: list[np.ndarray] = field(default_factory=list)

    def add(self, numbers: np.ndarray, widths: np.ndarray | int) -> None:
        """Append numbers, each of so many bits."""
        flat = np.asarray(numbers).reshape(-1).astype(np.int64)
        wide = np.broadcast_to(np.asarray(widths).reshape(-1), flat.shape)
        most = int(wide.max(initial=0))
        bits = (flat[:, None] >> np.arange(most)) & 1
        self.parts.append(bits[np.arange(most) < wide[:, None]].astype(np.uint8))

    def packed(self) -> np.ndarray:
        """All of them as bytes, and those behind that a reader may look at."""
        return np.pad(np.packbits(np.concatenate(self.parts), bitorder="little"), (0, READ_AHEAD))


def packed(rows: np.ndarray, form: Format | None, taps: int = 1, *, is_matrix: bool = False) -> PackedWeights:
    """The smallest packing of int8 codes (R, K); codes as they are where it saves little of them.

    form: of the file. is_matrix: whether a weight is multiplied once in a run. taps: of a window, which lie inside of
    channels in the rows that kernels read and outside of them in the file: K is taps × channels in the former.
    """
    plain, *others = packings(np.ascontiguousarray(rows, np.int8), form, taps)
    best = min(others, key=lambda each: each.bytes, default=plain)
    saved = SAVED_OF_MATRIX if is_matrix else SAVED
    return best if best.bytes <= plain.bytes * (1 - saved) else plain


def raw(rows: np.ndarray) -> PackedWeights:
    """Codes as they are."""
    return PackedWeights(
        PackedWeights.RAW, np.ascontiguousarray(rows, np.int8).view(np.uint8).reshape(-1), rows[0].size
    )


def packings(rows: np.ndarray, form: Format | None, taps: int) -> Iterator[PackedWeights]:
    """All that int8 codes can have, the plain one first."""
    yield raw(rows)
    yield from _evenly_spaced(rows)
    yield from _listed(rows)
    if rows.min(initial=0) > -128:
        yield _prefixed(rows)
    if isinstance(form, VectorCodebook):
        yield _pairs(rows, form, taps)
    if isinstance(form, Trellis):
        yield from _paths(rows, form)


def _evenly_spaced(rows: np.ndarray) -> Iterator[PackedWeights]:
    """Indices of codes that are the lowest one and multiples of a step."""
    low = int(rows.min(initial=0))
    above = np.unique(rows.astype(np.int32) - low)
    step = max(1, int(np.gcd.reduce(above)))
    bits = int(above.max(initial=0) // step).bit_length()
    if bits <= MOST_INDEX_BITS:
        writer = BitWriter()
        writer.add((rows.astype(np.int32) - low) // step, max(bits, 1))
        yield PackedWeights("index", writer.packed(), rows.shape[1], max(bits, 1), low=low, step=step)


def _listed(rows: np.ndarray) -> Iterator[PackedWeights]:
    """Indices into the list of codes that occur."""
    index, listed = indices(rows, 1)
    bits = max(1, (len(listed) - 1).bit_length())
    if bits <= MOST_INDEX_BITS:
        writer = BitWriter()
        writer.add(index, bits)
        yield PackedWeights("index", writer.packed(), rows.shape[1], bits, table=listed.reshape(-1))


def _pairs(rows: np.ndarray, form: VectorCodebook, taps: int) -> PackedWeights:
    """Indices of pairs of codes, which are neighbours in the order of the file."""
    index, listed = indices(_in_file_order(rows, taps), form.group)
    writer = BitWriter()
    writer.add(index, form.bits)
    return PackedWeights("pairs", writer.packed(), rows.shape[1], form.bits, table=listed.reshape(-1), taps=taps)


def _in_file_order(rows: np.ndarray, taps: int) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(len(rows), taps, -1).swapaxes(1, 2)).reshape(rows.shape)


def _prefixed(rows: np.ndarray) -> PackedWeights:
    """Where the bits behind the classes begin, the classes of each row, in whole bytes, and those bits."""
    turned = np.negative(rows)  # which by size is 0, -1, 1, -2, ...
    code = PrefixCode.of(turned, MOST_BITS, SAVED_BY_LIST)
    index = turned.view(np.uint8)
    classes = code.classes[index].astype(np.int64)
    widths = code.widths[classes].astype(np.int64)
    halves = np.pad(classes, ((0, 0), (0, rows.shape[1] % 2)))
    writer = BitWriter()
    writer.add(np.array([HEADER_BYTES + halves.size // 2]), 8 * HEADER_BYTES)
    writer.add(halves, CLASS_BITS)
    writer.add(code.places[index] - code.first[classes], widths)
    width, data = rows.shape[1], writer.packed()
    if code.codes is BY_SIZE:
        return PackedWeights("prefix", data, width, widths=code.widths)
    listed = np.negative(code.codes[: len(np.unique(rows))])
    table = np.concatenate([listed[1::2][::-1], listed[::2]])
    return PackedWeights("prefix", data, width, len(listed) // 2, table=table, widths=code.widths)


def _paths(rows: np.ndarray, form: Trellis) -> Iterator[PackedWeights]:
    """Steps of paths that run through the rows, or through the columns: as the file has them, which has one of both."""
    search = step_search()
    for kind, sequences in (("column_path", rows.T), ("row_path", rows)):
        steps = search.steps(np.ascontiguousarray(sequences), STORED_TABLE, form.steps)
        if steps is not None:
            yield _path(kind, rows, form, steps.astype(np.int64))
            return


def _path(kind: str, rows: np.ndarray, form: Trellis, steps: np.ndarray) -> PackedWeights:
    """The bits of paths, the first lowest, so that a state is 8 of them turned round; of columns byte after byte."""
    widths = np.resize(np.asarray(form.steps), steps.shape[1])
    first = np.zeros(len(steps), np.int64)
    for step, width in zip(steps.T, widths, strict=True):  # a path ends in the state in which it began
        first = (first << width | step) & (1 << STATE_BITS) - 1
    parts = [(first, STATE_BITS - widths[0]), *zip(steps.T, widths, strict=True)]
    bits = [part[:, None] >> np.arange(width)[::-1] & 1 for part, width in parts]
    writer = BitWriter()
    every = np.concatenate(bits, 1)
    if kind == "column_path":
        every = np.packbits(every.astype(np.uint8), axis=1, bitorder="little").T
        writer.add(every, WORD_BITS)
    else:
        writer.add(every, 1)
    turned = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), axis=1)
    return PackedWeights(kind, writer.packed(), rows.shape[1], form.bits, table=STORED_TABLE[turned[:, 0]])


def of_layer(weights: np.ndarray) -> np.ndarray:
    """Rows (O, taps × C) as dense kernels read them, of a weight (O, C, *kernel)."""
    moved: np.ndarray = np.moveaxis(weights, 1, -1)
    return np.ascontiguousarray(moved.reshape(len(weights), -1))


def row_sums(rows: np.ndarray, packed: PackedWeights) -> np.ndarray | None:
    """Sums (R,) of the weights of a matrix (R, K), as flash holds them beside it.

    None of other weights, of packed ones, and where a sum exceeds 16 bits: they are computed in every run.
    """
    if rows.ndim > 2 or not packed.is_raw:
        return None
    sums = rows.astype(np.int32).sum(1)
    return sums.astype(np.int16) if (np.abs(sums) < 2**15).all() else None
