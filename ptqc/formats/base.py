"""What a format of weights is: one object that every part of the compiler asks.

A format says which bits are stored for a weight, how a solver finds them, and how an ONNX graph rebuilds the weight
from them. Each is a file of this package; `ptqc.formats` lists them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, total_ordering
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from ptqc.formats.levels import REACH
from ptqc.formats.planes import planes_of
from ptqc.formats.scales import parts, powers_beside

V = TypeVar("V")

# The lowest opset of a file: the first with model-local functions and the bit operators.
LOWEST_OPSET = 18
# Codes of no more bits never exceed 16 bits in pairs of products, as processors without VNNI add them.
PORTABLE_BITS = 7
# Numbers that are rounded at a time.
ROUNDED_NUMBERS = 2**22
# Weights that are compared with levels at a time.
COMPARED = 2**16


@dataclass(frozen=True)
class Stated:
    """An attribute that calls of an unpacking function state, by its name among `Format.parameters`: integers."""

    name: str


class Nodes(Protocol[V]):
    """Where a format writes the ONNX nodes that rebuild a weight; V: how values are referred to."""

    def add(self, op_type: str, inputs: Sequence[V], **attributes: Any) -> V:
        """The output of a new node."""

    def constant(self, value: object, dtype: type) -> V:
        """A constant."""

    def array(self, name: str) -> V:
        """One of the arrays that are stored, by its name among `inputs`."""

    def indices(self, name: str, bits: int) -> V:
        """Indices joined from planes of such names, each followed by its width; flat and padded."""

    def bits(self, name: str, shape: Stated) -> V:
        """The single bits of an array that is stored (`ptqc.formats.planes.far_bits`), cut to this shape."""

    def single_bits(self, name: str) -> V:
        """The single bits (…, 8, m) of an array of bytes (…, m), lowest first."""

    def entries(self, name: str, index: V) -> V:
        """The numbers at these indices, in order, of a list that is stored as a row."""

    def stored(self) -> V:
        """What is stored of the codes: indices joined from their planes, flat and padded, or a tensor as it is."""

    def shaped(self, flat: V) -> V:
        """Flat and padded values cut and given the weight's shape."""

    def trimmed(self, values: V) -> V:
        """Values, of which there may be more than the weight has, given its shape."""

    def reshaped(self, values: V) -> V:
        """As many values as the weight has, given its shape."""

    def affine(self, step: int, lowest: int, to: ir.DataType) -> V:
        """lowest + step · what is stored, of the weight's shape; step is a power of two."""

    def looked_up(self) -> V:
        """The values in the table, `group` for each index, that what is stored stands for; of the weight's shape."""


@total_ordering
@dataclass(frozen=True)
class Format(ABC):
    """A storage format of weights; formats are ordered by family and bits.

    bits: of one stored index. family: the name without the bits. group: neighbouring weights that share an index. mark:
    tells the unpacking functions of this family from those of others. opset: the lowest that can unpack it. is_given:
    the weight as the model has it. is_plain: a tensor of the file that needs no function. is_learned: whether fitting
    it to a weight takes long. in_order: whether stored indices count the levels in order. is_regular: whether the place
    of an index follows from that of its weight, so that rows can be read alone. keeps_zeros: whether weights that are
    zero stay so. together: neighbours in a channel that a solver looks at one after the other. along_inputs: whether
    neighbours are input channels, of one tap each, rather than what the file has side by side. by_column: whether all
    outputs of a column are rounded together; by_row: all numbers of a row, of a table that no layer multiplies with.
    in_pairs: whether a code limits the one beside it. by_rate: whether the bytes of a weight follow from its codes.
    parameters: names of the attributes that calls of its unpacking function state, beside the weight's shape.
    by_default: whether it is tried where nobody asks for the family; from_numbers: in models of at least so many
    numbers. families: all that there are, in the order in which they are tried.
    """

    bits: int

    family: ClassVar[str]
    group: ClassVar[int] = 1
    mark: ClassVar[str] = ""
    opset: ClassVar[int] = LOWEST_OPSET
    is_plain: ClassVar[bool] = False
    is_learned: ClassVar[bool] = False
    in_order: ClassVar[bool] = False
    is_regular: ClassVar[bool] = True
    keeps_zeros: ClassVar[bool] = False
    together: ClassVar[int] = 1
    along_inputs: ClassVar[bool] = False
    by_column: ClassVar[bool] = False
    by_row: ClassVar[bool] = False
    in_pairs: ClassVar[bool] = False
    by_rate: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ()
    by_default: ClassVar[bool] = True
    from_numbers: ClassVar[int] = 0
    families: ClassVar[tuple[type["Format"], ...]] = ()

    @property
    def name(self) -> str:
        """The stable key in plans: int4, codebook3, pairs7, float16, palette1."""
        return f"{self.family}{self.bits}"

    def __str__(self) -> str:
        return self.name

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Format):
            return NotImplemented
        return (self.family, self.bits) < (other.family, other.bits)

    @staticmethod
    def parse(text: str) -> "Format":
        """Inverse of str(). Raises ValueError naming the text and the known formats."""
        known = _named(Format.families)
        if text not in known:
            raise ValueError(f"unknown number format {text!r}; known: {', '.join(known)}")
        return known[text]

    @property
    def bits_per_weight(self) -> float:
        """Stored bits of one weight, without scales and tables."""
        return self.bits / self.group

    @property
    def is_given(self) -> bool:
        """Whether it is the weight as the model has it, float32."""
        return False

    @property
    def is_scaled(self) -> bool:
        """Whether a weight is codes times scales that a solver chooses."""
        return False

    @property
    def code_bits(self) -> int | None:
        """Bits of the int8 codes that integer kernels read, with a scale per channel; None where there are none."""
        return None

    @property
    def has_codes(self) -> bool:
        """Whether integer kernels can read it."""
        return self.code_bits is not None

    @property
    def may_saturate(self) -> bool:
        """Whether two products of codes may exceed 16 bits, in which processors without VNNI add them."""
        return self.code_bits is not None and self.code_bits > PORTABLE_BITS

    @property
    def is_packed(self) -> bool:
        """Whether what is stored does not have the weight's shape."""
        return self.group > 1 or bool(planes_of(self.bits))

    @property
    def within_channels(self) -> bool:
        """Whether neighbours in a channel have to be neighbours where they are stored."""
        return self.group > 1

    @property
    def unpacked_as(self) -> "Format":
        """The format whose function unpacks it: its own, where formats of one family do not share one."""
        return self

    def is_padded(self, size: int) -> bool:  # noqa: ARG002
        """Whether what is stored of so many weights stands for more."""
        return False

    def stated_by(self, parameters: Mapping[str, Sequence[int]]) -> "Format":  # noqa: ARG002
        """The format of a weight whose call states these, of all that this one's function unpacks."""
        return self

    @property
    def shared(self) -> Mapping[str, np.ndarray]:
        """Arrays that all weights of the family share in a file, by name."""
        return {}

    def parameters_of(self, shape: Sequence[int]) -> Mapping[str, list[int]]:  # noqa: ARG002
        """What a call states as `parameters` for a weight that is stored in this shape."""
        return {}

    @property
    def colour(self) -> str:
        """Its colour in the report, one of `ptqc.artifact.report.markup.KINDS`."""
        return f"b{int(np.ceil(self.bits_per_weight))}"

    @classmethod
    @abstractmethod
    def members(cls) -> Iterable["Format"]:
        """All formats of the family."""

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list["Scaled"]:  # noqa: ARG003
        """The formats that a solver tries when weights of these bits are asked for."""
        return []

    @classmethod
    def suits_model(cls, numbers: int) -> bool:
        """Whether it is for the weights of a model, of so many numbers in all, where nobody asks for it."""
        return cls.by_default and numbers >= cls.from_numbers

    @classmethod
    def lacks(cls) -> str:
        """What a solver has not got that fitting it takes, and what to do; empty: nothing."""
        return ""

    @classmethod
    def direct(cls, values: np.ndarray) -> Iterator[tuple["Format", np.ndarray, np.ndarray]]:  # noqa: ARG003
        """The formats that a weight can have without a solver, each with its codes and scale."""
        return iter(())

    @abstractmethod
    def decode(self, codes: np.ndarray, scale: np.ndarray, axis: int) -> np.ndarray:
        """The weight, float32, as it will be used. axis: of the channels."""

    @abstractmethod
    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """The arrays that are stored, in the order of `inputs`; of scales the file has what `scales.roots` gives."""

    def sized(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Arrays of the types and shapes that `pack` gives, by less work; they are equal only where codes are.

        What is in them is of no use.
        """
        return self.pack(codes, scale)

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored: of what holds the codes, v for a table, s for scales."""
        return [*self.planes(), *(["s"] if self.is_scaled else [])]

    @abstractmethod
    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """Codes of the weight's shape from what is stored, not yet scaled; as float32 or, for integer kernels, int8."""

    def planes(self) -> list[str]:
        """Short names of what holds the indices."""
        return [f"p{width}" for width in planes_of(self.bits)] or ["p"]


class ColumnRounding(Protocol):
    """Rounds all outputs of a column together. All arrays are float32; costs (d, R) are of a squared error of codes."""

    def nearest(self, ratio: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """The codes of columns of weight / scale (d, R), each column for itself."""

    def rounded_in_turn(
        self, values: np.ndarray, codes: np.ndarray | None, costs: np.ndarray, coupling: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes of columns one after the other, each passing on to those behind it by how much it was moved.

        values (d, groups · R): weight / scale (GPTQ); with codes, how far each is from its best one (coordinate
        descent). coupling (groups, d, d): what a unit of a column's move adds to the values of later ones. Returns the
        codes, and what every one is more than its value, or than it was.
        """


def costs_of(importance: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What a squared error of codes costs where one of weights costs `importance` (d, R): relative to a column's most.

    scale (R,): of each output.
    """
    costs = importance * np.square(scale / scale.max())
    largest = costs.max(-1, keepdims=True)
    return np.asarray(costs / np.where(largest > 0, largest, 1), np.float32)


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the weights of one format may lie: `group` neighbours at a time.

    scale (…, R): of each row. nearest: of weight / scale (…, R, group), by the metric (…, group, group) if one is
    given, to the nearest levels, float32. code_type: of NumPy, that holds every level. mask (…, R, d): whether a weight
    has a code other than 0; None where all may have. patterns (P, M): in place of mask, ways in which it may be chosen
    for each M neighbours, one to a row; the others have codes that are not 0. powers: whether scales are powers of two.
    by_rate: whether scales are chosen for the bits that codes take. sequences: in place of nearest, where outputs of a
    column are rounded together.
    """

    scale: np.ndarray
    group: int
    nearest: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    code_type: type = np.int8
    mask: np.ndarray | None = None
    patterns: np.ndarray | None = None
    powers: bool = False
    by_rate: bool = False
    sequences: ColumnRounding | None = None

    def with_powers(self, rows: np.ndarray, importance: np.ndarray) -> "Grid":
        """The same with powers of two as scales: of the two beside each scale, the one of less error.

        Where error is not what scales are chosen by, the nearer one.

        rows and importance: as the grid was made for.
        """
        low, high = powers_beside(self.scale)
        if self.by_rate or self.sequences is not None:
            return replace(self, scale=np.where(self.scale * self.scale <= low * high, low, high), powers=True)
        return replace(self.with_scales([low, high], rows, importance), powers=True)

    def with_scales(self, tried: Sequence[np.ndarray], rows: np.ndarray, importance: np.ndarray) -> "Grid":
        """The same with the one of several scales for each row that leaves the least error."""
        errors = np.stack([self._error(rows, importance, scale) for scale in tried])
        best = np.take_along_axis(np.stack(tried), errors.argmin(0)[None], 0)[0]
        return replace(self, scale=np.asarray(best, np.float32))

    def _error(self, rows: np.ndarray, importance: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Squared error (…, R) of nearest rounding; of some columns at a time, as each is compared with all levels."""
        mask = self.mask if self.patterns is None else largest(rows * rows * importance, self.patterns)
        importance, total = np.broadcast_to(importance, rows.shape), np.zeros(scale.shape, np.float64)
        width = max(1, COMPARED // max(scale.size * self.group, 1)) * self.group
        for start in range(0, rows.shape[-1], width):
            here = slice(start, start + width)
            ratio = rows[..., here] / scale[..., None]
            codes = self.nearest(ratio.reshape(*scale.shape, -1, self.group), None).reshape(ratio.shape)
            away = rows[..., here] - (codes if mask is None else codes * mask[..., here]) * scale[..., None]
            total += (away * away * importance[..., here]).sum(-1)
        return total

    def rounded(self, rows: np.ndarray, importance: np.ndarray | float = 1.0) -> np.ndarray:
        """Codes of rows (R, d), each number for itself or, where a column is one sequence, each column by importance.

        importance (R, d), or broadcastable: what a unit of squared error costs.
        """
        if self.sequences is not None:
            columns, importance = (rows / self.scale[:, None]).T, np.broadcast_to(importance, rows.shape).T
            return self.sequences.nearest(columns, costs_of(importance, self.scale)).T.astype(self.code_type)
        codes: np.ndarray = np.empty(rows.shape, self.code_type)
        for part in parts(len(rows), -(-rows.size // ROUNDED_NUMBERS)):
            ratio = (rows[part] / self.scale[part, None]).reshape(len(rows[part]), -1, self.group)
            result = self.nearest(ratio, None).reshape(rows[part].shape)
            mask = self.mask_of(rows, part)
            codes[part] = result if mask is None else result * mask
        return codes

    def mask_of(self, rows: np.ndarray, part: slice) -> np.ndarray | None:
        """Which of rows[part] have codes other than 0, by their size where that is to be chosen; None: all may."""
        if self.patterns is not None:
            return largest(np.square(rows[part]), self.patterns)
        return None if self.mask is None else self.mask[part]


class Scaled(Format):
    """Codes times a scale per channel, both chosen by a solver."""

    @property
    def is_scaled(self) -> bool:
        """Whether a weight is codes times scales that a solver chooses."""
        return True

    @abstractmethod
    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """Where rows (…, R, d) may lie. importance (…, 1, d): what a unit of squared error costs, not negative.

        keeps_sign: not below 0, as no weight does; a format whose levels are means of weights has none there anyway.
        """

    def decode(self, codes: np.ndarray, scale: np.ndarray, axis: int) -> np.ndarray:
        """Codes times scale, float32."""
        return np.asarray(codes.astype(np.float32) * spread(scale, codes.ndim, axis), np.float32)

    def least_bits(self, rows: np.ndarray) -> float:  # noqa: ARG002
        """Stored bits of one of the weights (…, R, d), without scales and tables."""
        return self.bits_per_weight

    @classmethod
    def suits(cls, rows: np.ndarray) -> bool:  # noqa: ARG003
        """Whether formats of the family are worth trying for weights (…, R, d) that they fit."""
        return True

    @classmethod
    def superseded(cls, rows: np.ndarray, tried: Collection[Format]) -> Collection[Format]:  # noqa: ARG003
        """Formats that lose more for their bytes than those of this family, and are not tried for weights (…, R, d).

        tried: of this family, those that are.
        """
        return ()

    def mask(self, rows: np.ndarray) -> np.ndarray | None:  # noqa: ARG002
        """Which of the weights (…, R, d) have codes other than 0; None where all may, or where a solver chooses."""
        return None

    def fits(self, width: int, channels: int) -> bool:  # noqa: ARG002
        """Whether a weight of so many channels of `width` numbers can have it: no group reaches into the next one."""
        return width % self.group == 0

    def rounded(self, weight: np.ndarray, axis: int, *, powers: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Codes (of the weight's shape) and scale per index of `axis`, without looking at data.

        powers: whether scales are to be powers of two.
        """
        moved = np.moveaxis(weight, axis, 0)
        rows = moved.reshape(len(moved), -1)
        even = np.ones((1, rows.shape[1]), np.float32)
        grid = self.grid(rows, even)
        grid = grid.with_powers(rows, even) if powers else grid
        return np.ascontiguousarray(np.moveaxis(grid.rounded(rows).reshape(moved.shape), 0, axis)), grid.scale


class Coded(Scaled):
    """Scaled int8 codes, which integer kernels can read."""

    @property
    @abstractmethod
    def code_bits(self) -> int:
        """Bits of the codes."""

    @abstractmethod
    def levels(self, codes: np.ndarray) -> np.ndarray:
        """The levels that a weight of these codes can have, float32, ascending."""


class HalfBits(Coded):
    """Formats whose widths come in half bits. bits: of two weights."""

    @property
    def name(self) -> str:
        """Its bits for each weight, which may be half ones: tcq1.5, entropy4."""
        return f"{self.family}{self.bits_per_weight:g}"

    @property
    def bits_per_weight(self) -> float:
        """Stored bits of one weight, as the name says them."""
        return self.bits / 2

    @property
    def is_packed(self) -> bool:
        """Whether what is stored does not have the weight's shape."""
        return True

    @property
    def code_bits(self) -> int:
        """Bits of the int8 codes that integer kernels read."""
        return REACH.bit_length() + 1


def stand_in(codes: np.ndarray, size: int) -> np.ndarray:
    """Bytes that say nothing, so many, uint8; other ones for other codes, as equal arrays are stored once."""
    digest = np.frombuffer(hashlib.blake2b(codes.tobytes(), digest_size=16).digest(), np.uint8)[:size]
    return np.pad(digest, (0, size - len(digest)))


def largest(power: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """Which of (…, d) to keep, by the pattern (P, M) that keeps most of each M neighbours; of the same shape."""
    groups = power.reshape(*power.shape[:-1], -1, patterns.shape[1])
    chosen = np.asarray(patterns, bool)[(groups @ patterns.T.astype(power.dtype)).argmax(-1)]
    return np.asarray(chosen.reshape(power.shape))


def spread(scale: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Scales per channel, an array or a tensor of torch, with as many axes as the numbers that they scale."""
    shape = [1] * rank
    shape[axis] = -1
    return scale.reshape(shape)


@cache
def _named(families: tuple[type[Format], ...]) -> dict[str, Format]:
    return {str(form): form for family in families for form in family.members()}


def mean_bits(counts: Iterable[tuple[Format, int]]) -> float:
    """Stored bits of the mean weight, without scales and levels; 0 where there are none. counts: weights per format."""
    result = list(counts)
    return sum(form.bits_per_weight * count for form, count in result) / max(1, sum(count for _, count in result))
