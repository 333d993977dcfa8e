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
READ_AHEAD = 3
# Unpacking a weight takes some 10 to 15 instructions, and multiplying it two for each pixel: for a little flash it is
# not worth it, and less so where a matrix meets one pixel.
SAVED, SAVED_OF_MATRIX = 1 / 8, 1 / 4


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """One weight in flash.

    kind: which function of C unpacks it. data, table: its bytes. widths: of the bits behind each class of a prefix
    code. low, step: of evenly spaced codes without a table. taps: of a window, where pairs are in the order of the
    model. states: bytes of memory that it needs while rows are unpacked.
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
    states: int = 0

    RAW: ClassVar[str] = "raw"

    @property
    def is_raw(self) -> bool:
        """Whether kernels read it where it lies."""
        return self.kind == self.RAW

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
        wide = np.broadcast_to(np.asarray(widths), flat.shape)
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
    plain, *others = _packings(np.ascontiguousarray(rows, np.int8), form, taps)
    best = min(others, key=lambda each: each.bytes, default=plain)
    saved = SAVED_OF_MATRIX if is_matrix else SAVED
    return best if best.bytes <= plain.bytes * (1 - saved) else plain


def raw(rows: np.ndarray) -> PackedWeights:
    """Codes as they are."""
    return PackedWeights(
        PackedWeights.RAW, np.ascontiguousarray(rows, np.int8).view(np.uint8).reshape(-1), rows[0].size
    )


def _packings(rows: np.ndarray, form: Format | None, taps: int) -> Iterator[PackedWeights]:
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
    if bits < WORD_BITS:
        writer = BitWriter()
        writer.add((rows.astype(np.int32) - low) // step, max(bits, 1))
        yield PackedWeights("index", writer.packed(), rows.shape[1], max(bits, 1), low=low, step=step)


def _listed(rows: np.ndarray) -> Iterator[PackedWeights]:
    """Indices into the list of codes that occur."""
    index, listed = indices(rows, 1)
    bits = max(1, (len(listed) - 1).bit_length())
    if bits < WORD_BITS:
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
    """A class of 4 bits for each code, and as many more bits as the class says."""
    code = PrefixCode.of(rows.reshape(1, -1))
    index = rows.view(np.uint8).reshape(-1)
    classes = code.classes[index]
    offsets = code.places[index] - code.first[classes]
    writer = BitWriter()
    widths = code.widths[classes].astype(np.int64)
    writer.add(classes | offsets << CLASS_BITS, CLASS_BITS + widths)
    is_by_size = code.codes is BY_SIZE
    return PackedWeights(
        "prefix",
        writer.packed(),
        rows.shape[1],
        table=None if is_by_size else code.codes,
        widths=code.widths,
    )


def _paths(rows: np.ndarray, form: Trellis) -> Iterator[PackedWeights]:
    """Steps of paths that run through the rows, or through the columns: as the file has them, which has one of both."""
    search = step_search()
    for kind, sequences in (("column_path", rows.T), ("row_path", rows)):
        steps = search.steps(np.ascontiguousarray(sequences), STORED_TABLE, form.steps)
        if steps is not None:
            yield _path(kind, rows, form, steps.astype(np.int64))
            return


def _path(kind: str, rows: np.ndarray, form: Trellis, steps: np.ndarray) -> PackedWeights:
    """The states in which paths begin, and their steps, row after row."""
    widths = np.resize(np.asarray(form.steps), steps.shape[1])
    first = np.zeros(len(steps), np.int64)
    for step, width in zip(steps.T, widths, strict=True):  # a path ends in the state in which it began
        first = (first << width | step) & (1 << STATE_BITS) - 1
    writer = BitWriter()
    if kind == "row_path":
        beside = np.column_stack([first, steps])
        writer.add(beside, np.broadcast_to([STATE_BITS, *widths], beside.shape).reshape(-1))
    else:
        writer.add(first, STATE_BITS)
        writer.add(steps.T, np.repeat(widths, len(steps)))
    states = rows.shape[1] if kind == "column_path" else 0
    return PackedWeights(kind, writer.packed(), rows.shape[1], form.bits, table=STORED_TABLE, states=states)


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
