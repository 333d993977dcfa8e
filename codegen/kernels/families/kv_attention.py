"""Products of a few rows with keys or values of many places, which stay as they are kept: (heads, places, channels).

Keys are multiplied row by row, so that nobody has to transpose them; several queries that share a head of keys or
values read them once; packed rows are unpacked in registers. The last places may lie apart, as those of new words do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels.families import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import KernelGrid, KernelSource, expressed, fill, in_vectors, span, vector
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import SUM_OF_PRODUCTS
from ptqc.runtime.lengths import Size, UnknownSizeError

# Rows that are multiplied at once, each with sums of its own in registers.
MOST_ROWS = 8
# float32 channels of a row: of a vector that starts at a channel, before the row's scale.
Channels = Callable[[int], Any]


@dataclass(frozen=True)
class KvRows(ABC):
    """How rows of channels lie in memory. parts: layouts (…, places, size), one behind the other in buffers."""

    parts: tuple[Layout, ...]

    @property
    def places(self) -> Size:
        """Of a head."""
        size: Size = self.parts[0].shape[-2]
        return size

    @property
    def heads(self) -> Size:
        """Of all texts of a sample."""
        count: Size = prod(self.parts[0].shape[:-2])
        return count

    @property
    def run(self) -> int:
        """Neighbouring channels that are neighbours in memory."""
        return int(self.parts[0].shape[-1])

    @property
    def channels(self) -> int:
        """Of a row."""
        return self.run

    @abstractmethod
    def row(self, buffers: Sequence[Any], sample: Any, row: Any, lanes: int) -> tuple[Channels, Any]:
        """What gives vectors of a row, and the scale of all of it, if it has one. buffers: of the parts."""


class RealRows(KvRows):
    """float32 or float16."""

    def row(self, buffers: Sequence[Any], sample: Any, row: Any, lanes: int) -> tuple[Channels, Any]:
        start = T.Bind(row * self.channels)
        return lambda channel: _real(buffers[0][sample, span(start + channel, lanes)], lanes), None


@dataclass(frozen=True)
class CodedRows(KvRows):
    """Codes of a byte, and a float16 scale for each row: (code − middle) · scale."""

    middle: int

    def row(self, buffers: Sequence[Any], sample: Any, row: Any, lanes: int) -> tuple[Channels, Any]:
        start = T.Bind(row * self.run)

        def channels(channel: int) -> Any:
            part, place = divmod(channel, self.run)
            stored = T.Cast(vector("int32", lanes), buffers[0][sample, span(start + place, lanes)])
            codes = self.codes(stored, part, lanes)
            return T.Cast(vector("float32", lanes), codes - fill(T.int32(self.middle), lanes))

        return channels, T.Bind(T.Cast("float32", buffers[1][sample, row]))

    def codes(self, stored: Any, part: int, lanes: int) -> Any:  # noqa: ARG002
        """int32 codes of what is stored. part: of the channels, each as many as lie together."""
        return stored


class PairedRows(CodedRows):
    """The same with codes of 4 bits: of a byte, the lower half is of the first half of the channels."""

    @property
    def channels(self) -> int:
        return 2 * self.run

    def codes(self, stored: Any, part: int, lanes: int) -> Any:
        if part:
            return T.shift_right(stored, fill(T.int32(4), lanes))
        return T.bitwise_and(stored, fill(T.int32(15), lanes))


@dataclass(frozen=True)
class Places:
    """All places: those that are kept, and those behind them that lie apart, if any."""

    kv: KvRows
    new: RealRows | None

    @property
    def layouts(self) -> list[Layout]:
        """Of all inputs."""
        return [*self.kv.parts, *(self.new.parts if self.new else ())]

    @property
    def count(self) -> Size:
        """Of a head."""
        return self.kv.places + (self.new.places if self.new else 0)

    def stretches(self, buffers: Sequence[Any]) -> Iterator[tuple[KvRows, Sequence[Any], Any]]:
        """Rows that lie together, with their buffers and the number of places before them. buffers: of all inputs."""
        parts = len(self.kv.parts)
        yield self.kv, buffers[:parts], T.int64(0)
        if self.new:
            yield self.new, buffers[parts:], expressed(self.kv.places)

    def lanes(self, isa: Isa) -> int:
        """Channels of a vector: of no more than lie together, and none is left over."""
        run = self.kv.run
        return min(isa.lanes, run & -run)


def scores(q: Layout, keys: Places, y: Layout, isa: Isa) -> KernelSource:
    """q kᵀ: (heads · rows, channels) times (heads, places, channels) is (heads · rows, places)."""
    lanes, channels = keys.lanes(isa), keys.kv.channels
    count = rows_of(q, keys.kv) or 0

    def body(grid: KernelGrid, queries: Any, *buffers: Any) -> None:
        *inputs, out = buffers
        places = expressed(keys.count)
        with grid.rows(keys.kv.heads, q.elements * keys.count) as (sample, head):
            for first in range(0, count, MOST_ROWS):
                chosen = [T.Bind(head * count + row) for row in range(first, min(first + MOST_ROWS, count))]

                def product(kv: KvRows, parts: Sequence[Any], row: Any, mine: Sequence[Any]) -> list[Any]:
                    """Vectors whose elements add up to the scores of a place."""
                    read, scale = kv.row(parts, sample, row, lanes)
                    totals: list[Any] = [None] * len(mine)
                    for channel in range(0, channels, lanes):
                        key = T.Bind(read(channel))
                        for place, query in enumerate(mine):
                            term = key * queries[sample, span(query * channels + channel, lanes)]
                            totals[place] = term if totals[place] is None else totals[place] + term
                    return [T.Bind(total if scale is None else total * fill(scale, lanes)) for total in totals]

                def each(kv: KvRows, parts: Sequence[Any], before: Any, mine: Sequence[Any] = chosen) -> None:
                    """All places of what is kept, in blocks of as many as a vector has."""

                    def visit(place: Any, block: int) -> None:
                        start = T.Bind(T.Cast("int64", head) * expressed(kv.places) + place)
                        value = added_up(lambda step: product(kv, parts, start + step, mine), block, lanes)
                        for query, sums in zip(mine, value, strict=True):
                            at = span(T.Cast("int64", query) * places + before + place, block)
                            T.buffer_store(out, sums, [sample, at])

                    in_vectors(kv.places, lanes, visit)

                for stretch in keys.stretches(inputs):
                    each(*stretch)

    return build("scores", [q, *keys.layouts], [], y, body, accuracy=SUM_OF_PRODUCTS)


def mixed(weights: Layout, values: Places, y: Layout, isa: Isa) -> KernelSource:
    """w v: (heads · rows, places) times (heads, places, channels) is (heads · rows, channels)."""
    lanes, channels = values.lanes(isa), values.kv.channels
    count = rows_of(y, values.kv) or 0

    def body(grid: KernelGrid, shares: Any, *buffers: Any) -> None:
        *inputs, out = buffers
        places = expressed(values.count)
        with grid.rows(values.kv.heads, y.elements * values.count) as (sample, head):
            for first in range(0, count, MOST_ROWS):
                chosen = [T.Bind(head * count + row) for row in range(first, min(first + MOST_ROWS, count))]
                totals = [[grid.registers(lanes, "float32") for _ in range(0, channels, lanes)] for _ in chosen]
                for total in (total for row in totals for total in row):
                    T.buffer_store(total, fill(T.float32(0), lanes), [span(0, lanes)])

                def each(kv: KvRows, parts: Sequence[Any], before: Any, mine: Any = (chosen, totals)) -> None:
                    """Add all places of what is kept."""
                    with T.serial(expressed(kv.places)) as place:
                        row = T.Bind(T.Cast("int64", head) * expressed(kv.places) + place)
                        read, scale = kv.row(parts, sample, row, lanes)
                        factors = []
                        for query in mine[0]:
                            share = shares[sample, T.Cast("int64", query) * places + before + place]
                            factors.append(T.Bind(share if scale is None else share * scale))
                        for index, channel in enumerate(range(0, channels, lanes)):
                            value = T.Bind(read(channel))
                            for factor, sums in zip(factors, mine[1], strict=True):
                                added = sums[index][span(0, lanes)] + fill(factor, lanes) * value
                                T.buffer_store(sums[index], added, [span(0, lanes)])

                for stretch in values.stretches(inputs):
                    each(*stretch)
                for query, sums in zip(chosen, totals, strict=True):
                    for index, channel in enumerate(range(0, channels, lanes)):
                        place = [sample, span(query * channels + channel, lanes)]
                        T.buffer_store(out, sums[index][span(0, lanes)], place)

    return build("mixed", [weights, *values.layouts], [], y, body, accuracy=SUM_OF_PRODUCTS)


def added_up(vectors: Callable[[int], list[Any]], count: int, lanes: int) -> list[Any]:
    """Of vectors the sums of their elements; for each in a list, the vector of those sums.

    vectors: gives list number 0 … count − 1. count: 1, or as many as a vector has elements.
    """
    if count == 1:
        return [_folded(total, lanes) for total in vectors(0)]
    return _joined(vectors, 0, count, lanes)


def _joined(vectors: Callable[[int], list[Any]], first: int, count: int, lanes: int) -> list[Any]:
    """Two by two, each as soon as both are there, so that few are in registers at a time: neighbours of one vector
    beside neighbours of the other, so that what is left is in order.
    """
    if count == 1:
        return vectors(first)
    half = count // 2
    halves = (_joined(vectors, start, half, lanes) for start in (first, first + half))
    return [_neighbours(a, b, lanes) for a, b in zip(*halves, strict=True)]


def _neighbours(a: Any, b: Any, lanes: int) -> Any:
    """Sums of neighbours of a, then those of b."""
    even, odd = (T.Shuffle([a, b], [T.int32(i) for i in range(start, 2 * lanes, 2)]) for start in (0, 1))
    return T.Bind(even + odd)


def _folded(total: Any, lanes: int) -> Any:
    """The sum of a vector's elements: one half upon the other until one is left."""
    while lanes > 1:
        lanes //= 2
        low, high = (T.Shuffle([total], [T.int32(i) for i in range(start, start + lanes)]) for start in (0, lanes))
        total = T.Bind(low + high)
    return total


def rows_of(x: Layout, kv: KvRows) -> int | None:
    """Rows of each head of x (heads · rows, channels), if that number is one for all runs."""
    width = kv.heads * kv.channels
    try:
        count, remainder = x.elements // width, x.elements % width
    except UnknownSizeError:
        return None
    return count if isinstance(count, int) and remainder == 0 else None


def _real(x: Any, lanes: int) -> Any:
    return T.Cast(vector("float32", lanes), x)
