"""What becomes of a layer's codes before they are stored: tables, and sums with codes that lie in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.tirx.script import builder as T  # noqa: N812

from ptqc.codegen.kernels import mathematics
from ptqc.codegen.kernels.isa import DOT, Isa
from ptqc.codegen.kernels.writing import fill, span, to_codes, vector
from ptqc.codegen.program.layout import Layout

# From accumulators to codes: four vectors of real numbers at once, rounded and saturated by the processor's packs.
#
# Packs work within parts of 128 bits, so what they leave of four vectors is their 32-bit pieces transposed, (part,
# vector); one permutation puts it right.

# Vectors of 32-bit numbers that become one vector of codes.
PACKED = 4
PART = 4
# What the conversion to int32 takes for certain.
LARGEST = 2.0**30
LARGEST_CODE = 255


@dataclass(frozen=True, eq=False)
class Requantization:
    """How sums become codes, rint((sum + bias) · factor) + zero_point, or real values, (sum + bias) · factor."""

    #: int32 (outputs), with the input's zero point already in it.
    bias: np.ndarray
    #: float32 (outputs): s_x · s_w / s_y, or s_x · s_w for real values.
    factor: np.ndarray
    zero_point: int = 0


def fits(weights: np.ndarray, bias: np.ndarray, factor: np.ndarray) -> bool:
    """Whether no accumulator of these layers can leave int32 once it is scaled; weights, bias, factor: by output."""
    largest = np.abs(weights.reshape(len(weights), -1).astype(np.float64)).sum(1) * LARGEST_CODE
    return bool(((largest + np.abs(bias.astype(np.float64))) * np.abs(factor) < LARGEST).all())


def requantize(
    isa: Isa, values: Sequence[Any], zero_point: Any, out: Any, *, fitting: bool, transposed: bool = False
) -> None:
    """Store the codes clip(rint(value) + zero_point) of up to PACKED float32 vectors in a local buffer.

    zero_point: float32. fitting: every value is within int32. out: room for PACKED vectors. transposed: the vectors
    hold what packs put right (only where there are packs).
    """
    if isa.packs is None:
        for place, value in enumerate(values):
            codes = to_codes(T.nearbyint(value) + fill(zero_point, isa.lanes), isa.lanes)
            T.buffer_store(out, codes, [span(place * isa.lanes, isa.lanes)])
        return
    four = [value if fitting else _limited(value, isa.lanes) for value in values]
    codes = _packed(isa, [*four, *[four[-1]] * (PACKED - len(four))], zero_point)
    T.buffer_store(out, codes if transposed else _ordered(isa, codes), [span(0, PACKED * isa.lanes)])


def rounded(isa: Isa, value: Any, zero_point: Any) -> Any:
    """The codes of a float32 vector, as float32."""
    lowest, highest = (fill(T.float32(code), isa.lanes) for code in (0, LARGEST_CODE))
    return T.min(T.max(T.nearbyint(value) + fill(zero_point, isa.lanes), lowest), highest)


def _limited(value: Any, lanes: int) -> Any:
    most = T.float32(LARGEST)
    return T.min(T.max(value, fill(-most, lanes)), fill(most, lanes))


def _packed(isa: Isa, values: Sequence[Any], zero_point: Any) -> Any:
    """Codes of four vectors, part by part."""
    whole = [isa.round(value) for value in values]
    words, zero = vector("int16", 2 * isa.lanes), fill(T.Cast("int16", zero_point), 2 * isa.lanes)
    pairs = [isa.saturate_words(whole[i], whole[i + 1]) for i in (0, 2)]
    return isa.saturate_codes(*(T.call_llvm_pure_intrin(words, "llvm.sadd.sat", pair, zero) for pair in pairs))


def _ordered(isa: Isa, codes: Any) -> Any:
    """Codes of four vectors one after the other."""
    pieces, parts = T.reinterpret(vector("int32", isa.lanes), codes), isa.lanes // PART
    order = [part * PACKED + place for place in range(PACKED) for part in range(parts)]
    return T.reinterpret(vector("uint8", PACKED * isa.lanes), T.Shuffle([pieces], [T.int32(i) for i in order]))


# Tables of 256 codes, looked up for a whole vector at once by the processor's permutations of bytes.

CODES = 256
# Vectors of a table that are looked up at once.
TABLES = 4
# A table in rows of as many codes as a part of a vector holds.
ROW = 16
# Picking gives 0 for places of 128 and more: added with saturation, this leaves the codes of one row below that.
BEYOND = 0x70


def arranged(isa: Isa, entries: np.ndarray) -> np.ndarray:
    """The table as `look_up` reads it: where bytes are picked within parts, each row once for every part."""
    entries = entries.astype(np.uint8)
    if isa.permute or isa.look_up or not isa.pick:
        return entries
    parts = isa.lanes * DOT // ROW
    return np.repeat(entries.reshape(-1, 1, ROW), parts, axis=1).reshape(-1)


def look_up(isa: Isa, table: Any, codes: Any, count: int) -> Any:
    """The entries of `count` codes; where bytes can be permuted, of a whole vector of them."""
    if isa.permute:
        return _permuted(isa, table, codes)
    if isa.look_up:
        return _looked_up(isa, table, codes)
    if isa.pick:
        return _picked(isa, table, codes)
    return table[T.Cast(vector("int32", count), codes)]


def _permuted(isa: Isa, table: Any, codes: Any) -> Any:
    """Look up codes in two vectors of the table at a time; the code's higher bits choose among what was found."""
    wide = DOT * isa.lanes
    parts = [table[span(start, wide)] for start in range(0, CODES, wide)]
    values = [isa.permute_bytes(low, codes, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    reach = 2 * wide
    while len(values) > 1:
        within = T.bitwise_and(codes, fill(T.uint8(2 * reach - 1), wide))
        is_upper = within >= fill(T.uint8(reach), wide)
        values = [T.Select(is_upper, high, low) for low, high in zip(values[::2], values[1::2], strict=True)]
        reach *= 2
    return values[0]


def _looked_up(isa: Isa, table: Any, codes: Any) -> Any:
    """Look up codes in four vectors of the table at a time, of which all but one have nothing at a code's place."""
    wide = DOT * isa.lanes
    total = None
    for start in range(0, CODES, TABLES * wide):
        tables = [table[span(start + part * wide, wide)] for part in range(TABLES)]
        value = isa.look_up_bytes(tables, codes - fill(T.uint8(start), wide))
        total = value if total is None else T.bitwise_or(total, value)
    return total


def _picked(isa: Isa, table: Any, codes: Any) -> Any:
    wide = DOT * isa.lanes
    total = None
    for row in range(CODES // ROW):
        within = T.bitwise_xor(codes, fill(T.uint8(row * ROW), wide))
        places = T.call_llvm_pure_intrin(vector("uint8", wide), "llvm.uadd.sat", within, fill(T.uint8(BEYOND), wide))
        value = isa.pick_bytes(table[span(row * wide, wide)], places)
        total = value if total is None else T.bitwise_or(total, value)
    return total


# Sample, row, column and first channel of a vector of codes.
Place = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, eq=False)
class Lookup:
    """Codes become entries[code]."""

    entries: np.ndarray
    operands = 0

    def constant(self, isa: Isa) -> np.ndarray:
        """What `apply` needs beside the codes."""
        return arranged(isa, self.entries)

    def apply(self, isa: Isa, target: Any, _places: Sequence[Place], constant: Any, _others: Sequence[Any]) -> None:
        """Replace the codes in a local buffer of PACKED vectors."""
        wide = PACKED * isa.lanes if isa.pick else isa.lanes
        for start in range(0, PACKED * isa.lanes, wide):
            codes = T.Bind(target[span(start, wide)])
            T.buffer_store(target, look_up(isa, constant, codes, wide), [span(start, wide)])


@dataclass(frozen=True, eq=False)
class Sum:
    """Codes become those of a sum with others; numbers: ratios of both and what they leave, see
    `ptqc.ir.integer_arithmetic.add`.

    own: which of the two operands these codes are. other: the layout of the other one, once that is known.
    """

    numbers: np.ndarray
    own: int
    other: Layout | None = None
    operands = 1

    def constant(self, _isa: Isa) -> np.ndarray:
        """What `apply` needs beside the codes."""
        return self.numbers.astype(np.float32)

    @property
    def fits(self) -> bool:
        """Whether no sum can leave int32."""
        ratios = np.abs(self.numbers.astype(np.float64)) * (LARGEST_CODE, LARGEST_CODE, 1)
        return bool(ratios.sum() < LARGEST)

    def apply(self, isa: Isa, target: Any, places: Sequence[Place], constant: Any, others: Sequence[Any]) -> None:
        """Replace the codes in a local buffer; places: of its vectors."""
        own = [_real(target[span(index * isa.lanes, isa.lanes)], isa.lanes) for index in range(len(places))]
        self.add(isa, own, target, places, constant, others)

    def add(
        self,
        isa: Isa,
        own: Sequence[Any],
        target: Any,
        places: Sequence[Place],
        constant: Any,
        others: Sequence[Any],
    ) -> None:
        """The same from codes as float32 vectors."""
        assert self.other is not None
        sums = []
        for codes, (sample, *place) in zip(own, places, strict=True):
            other = _real(others[0][sample, span(self.other.at(*place), isa.lanes)], isa.lanes)
            operands = (other, codes) if self.own else (codes, other)
            sums.append(T.Bind(mathematics.weighted(constant, *operands, isa.lanes, in_c=isa.kind != "llvm")))
        requantize(isa, sums, T.float32(0), target, fitting=self.fits)


Stage = Lookup | Sum


def _real(codes: Any, lanes: int) -> Any:
    return T.Cast(vector("float32", lanes), T.Cast(vector("int32", lanes), codes))


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Stages in their order."""

    stages: tuple[Stage, ...] = ()

    @property
    def others(self) -> list[Layout]:
        """Layouts of what the stages read."""
        return [stage.other for stage in self.stages if isinstance(stage, Sum) and stage.other is not None]

    def reading(self, others: Sequence[Layout]) -> "Epilogue":
        """The epilogue with the layouts of what its sums read, in their order."""
        left = iter(others)
        stages = (replace(stage, other=next(left)) if isinstance(stage, Sum) else stage for stage in self.stages)
        return Epilogue(tuple(stages))

    def with_stage(self, stage: Stage) -> "Epilogue":
        """The epilogue with one more stage."""
        return Epilogue((*self.stages, stage))

    def constants(self, isa: Isa) -> list[np.ndarray]:
        """The constants of each stage."""
        return [stage.constant(isa) for stage in self.stages]

    def settle(
        self,
        isa: Isa,
        values: Sequence[Any],
        zero_point: Any,
        target: Any,
        places: Sequence[Place],
        constants: Sequence[Any],
        others: Sequence[Any],
        *,
        fitting: bool,
    ) -> None:
        """Fill a local buffer with what becomes of the codes of up to PACKED vectors; see `narrowing.requantize`.

        A sum that comes first takes the codes as they are rounded, before they would be packed.
        """
        first = self.stages[0] if self.stages else None
        if not isinstance(first, Sum):
            requantize(isa, values, zero_point, target, fitting=fitting)
            self.apply(isa, target, places, constants, others)
            return
        own = [rounded(isa, value, zero_point) for value in values]
        first.add(isa, own, target, places, constants[0], others[:1])
        Epilogue(self.stages[1:]).apply(isa, target, places, constants[1:], others[1:])

    def apply(
        self, isa: Isa, target: Any, places: Sequence[Place], constants: Sequence[Any], operands: Sequence[Any]
    ) -> None:
        """Replace the codes in a local buffer of PACKED vectors; places: of its vectors."""
        for stage, constant in zip(self.stages, constants, strict=True):
            stage.apply(isa, target, places, constant, operands[: stage.operands])
            operands = operands[stage.operands :]


NOTHING = Epilogue()
