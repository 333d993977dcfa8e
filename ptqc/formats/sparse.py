"""Sparse weights: a bit for each weight tells whether it is zero, and only the others have codes, which are not zero.

For models that arrive pruned. Zeros stay exact, however few bits the others have: a share z of zeros and codes of b
bits take 1 + (1 − z) b bits per weight. What was pruned by magnitude has no weights near zero, and the grid has none
there: q = ±1, ±2, …, ±2^(b−1). A codebook puts its levels where the weights are.

Where two of each four neighbours in a channel are zero (2:4), six patterns tell which: ¾ + ½ b bits per weight. Of
weights that do not arrive so a solver chooses the zeros. Neighbours are input channels, tap by tap, as hardware for
such weights sums them.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.errors import InternalError
from ptqc.formats import planes, scales
from ptqc.formats.base import Coded, Grid, Nodes, Scaled, V, largest
from ptqc.formats.levels import REACH, fit, indices

# Bits of the codes. More than the widest leave no loss to speak of; a codebook of more gains nothing over a grid.
BITS, LISTED_BITS = range(1, 7), range(2, 5)
# Share of a weight's zeros from which it may be stored so.
FEWEST_ZEROS = 0.3
# Of the zeros of a weight that is not known: the formats are ordered by it.
USUAL_ZEROS = 0.5
MASK = "m"
# Which of four neighbours are not zero, one pattern to a row, and the bits of its number.
FOUR = 4
PATTERNS = np.array([[i in pair for i in range(FOUR)] for pair in combinations(range(FOUR), 2)], np.uint8)
PATTERN_BITS = 3


class Masked(Coded):
    """Codes of the weights that are not zero, behind what tells which these are.

    mask_bits: of a plane's index; by default one for each weight. multiple: of codes that are stored at least.
    """

    is_regular: ClassVar[bool] = False
    keeps_zeros: ClassVar[bool] = True
    mask_bits: ClassVar[int] = 1
    multiple: ClassVar[int] = planes.MULTIPLE

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """Those of at least the narrowest and at most the widest bits per weight, where half of these are zeros."""
        forms: list[Masked] = [form for form in cls.members() if isinstance(form, Masked)]
        return [form for form in forms if min(widths) - 0.5 <= form.bits_per_weight <= max(widths)]

    @property
    def bits_per_weight(self) -> float:
        """Stored bits of one weight where half of them are zeros."""
        return 1 + (1 - USUAL_ZEROS) * self.bits

    def least_bits(self, rows: np.ndarray) -> float:
        """Stored bits of one of these weights, without scales and levels."""
        return 1 + float((rows != 0).mean()) * self.bits

    @classmethod
    def suits(cls, rows: np.ndarray) -> bool:
        """Whether enough of the weights are zeros."""
        return bool(rows.size) and float((rows == 0).mean()) >= FEWEST_ZEROS

    def mask(self, rows: np.ndarray) -> np.ndarray | None:
        """Those that are not zero."""
        return np.asarray(rows != 0)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """What is not zero; planes of the indices of its codes, in order; levels, if any are listed; the scales."""
        is_kept = codes != 0
        dense = codes[is_kept] if is_kept.any() else np.ones(1, np.int8)  # never empty, as a Reshape to -1 refuses that
        index, listed = self.index_of(dense)
        index = np.pad(index, (0, -index.size % self.multiple))
        mask = planes.pack(self.mask_of(is_kept), self.mask_bits)
        return [*mask, *planes.pack(index, self.bits), *listed, scale]

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        return [*(f"{MASK}{width}" for width in planes.planes_of(self.mask_bits)), *super().inputs]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """What is not zero is counted: that is the place of its code, behind a zero that all others read."""
        is_kept = nodes.add("Cast", [self.is_kept(nodes)], to=ir.DataType.INT32)
        count = nodes.add("CumSum", [is_kept, nodes.constant(0, np.int32)])
        place = nodes.add("Mul", [count, is_kept])
        index = nodes.add("Cast", [nodes.stored()], to=ir.DataType.INT32)
        dense = nodes.add("Gather", [self.listed(nodes), index])
        every = nodes.add("Concat", [nodes.constant([0], np.int8), dense], axis=0)
        codes = nodes.shaped(nodes.add("Gather", [every, place]))
        return codes if to == ir.DataType.INT8 else nodes.add("Cast", [codes], to=to)

    def mask_of(self, is_kept: np.ndarray) -> np.ndarray:
        """What is stored of where codes are not zero."""
        return is_kept

    def is_kept(self, nodes: Nodes[V]) -> V:
        """1 where codes are not zero and 0 elsewhere, flat and padded, from what is stored of that."""
        return nodes.indices(MASK, self.mask_bits)

    @abstractmethod
    def index_of(self, array: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Indices of codes that are not zero, and the list that they refer to if it is stored."""

    @abstractmethod
    def listed(self, nodes: Nodes[V]) -> V:
        """The codes that indices stand for."""


class Sparse(Masked):
    """sparse1 to sparse6: evenly spaced codes on both sides of zero."""

    family = "sparse"
    mark: ClassVar[str] = "s"

    @classmethod
    def members(cls) -> Iterable["Sparse"]:
        """All formats of the family."""
        return map(cls, BITS)

    @property
    def code_bits(self) -> int:
        """Bits of the int8 codes that integer kernels read."""
        return self.bits + 1

    @property
    def largest(self) -> int:
        """The largest code."""
        return 1 << (self.bits - 1)

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        """The grid's nearest code (as float) to weight / scale."""
        return np.asarray(np.copysign(np.clip(np.rint(np.abs(ratio)), 1, self.largest), ratio))

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error when each weight is rounded for itself."""
        return self._grid(rows, importance, rows != 0, keeps_sign)

    def _grid(self, rows: np.ndarray, importance: np.ndarray, array: np.ndarray, keeps_sign: bool) -> Grid:
        scale = scales.search(rows, importance * array, self.nearest, self.largest + 0.5)
        lowest = 0.0 if keeps_sign else -np.inf
        return Grid(scale, 1, lambda ratio, _: self.nearest(np.maximum(ratio, lowest)), mask=array)

    def levels(self, codes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """All codes of the grid."""
        return np.asarray([*range(-self.largest, 0), *range(1, self.largest + 1)], np.float32)

    def index_of(self, array: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Negative codes in the lower half."""
        return array.astype(np.int16) + self.largest - (array > 0), []

    def listed(self, nodes: Nodes[V]) -> V:
        """All codes of the grid."""
        return nodes.constant(self.levels(np.empty(0)), np.int8)


class TwoOfFour(Sparse):
    """twooffour1 to twooffour6: the same where two of each four neighbours in a channel are zero."""

    family = "twooffour"
    mark: ClassVar[str] = "h"
    mask_bits: ClassVar[int] = PATTERN_BITS
    multiple: ClassVar[int] = 2 * planes.MULTIPLE  # two codes for each pattern, padding included
    together: ClassVar[int] = FOUR
    along_inputs: ClassVar[bool] = True

    @property
    def bits_per_weight(self) -> float:
        """Stored bits of one weight."""
        return PATTERN_BITS / FOUR + self.bits / 2

    @property
    def within_channels(self) -> bool:
        """Whether neighbours in a channel have to be neighbours where they are stored."""
        return True

    def least_bits(self, rows: np.ndarray) -> float:  # noqa: ARG002
        """The same for all weights."""
        return self.bits_per_weight

    def fits(self, width: int, channels: int) -> bool:  # noqa: ARG002
        """Whether channels of `width` numbers are whole fours."""
        return width % FOUR == 0

    @classmethod
    def suits(cls, rows: np.ndarray) -> bool:
        """Whether two of each four are zero."""
        return bool(((rows != 0).reshape(-1, FOUR).sum(1) == FOUR // 2).all())

    def mask(self, rows: np.ndarray) -> np.ndarray | None:
        """Those that are not zero, if they are two of each four."""
        return super().mask(rows) if self.suits(rows) else None

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:
        """The scales of least error; where two of each four are yet to be chosen, those of the likely ones."""
        if self.suits(rows):
            return super().grid(rows, importance, keeps_sign=keeps_sign)
        likely = self._grid(rows, importance, largest(rows * rows * importance, PATTERNS), keeps_sign)
        return replace(likely, mask=None, patterns=PATTERNS)

    def mask_of(self, is_kept: np.ndarray) -> np.ndarray:
        """The pattern of each four. Raises InternalError where one has not two codes."""
        match = (is_kept.reshape(-1, 1, FOUR) == PATTERNS).all(-1)
        if not match.any(1).all():
            raise InternalError(f"four neighbours have not two codes that are not zero, as {self} stores them")
        return np.asarray(match.argmax(1))

    def is_kept(self, nodes: Nodes[V]) -> V:
        """The patterns, one after the other."""
        number = nodes.add("Cast", [nodes.indices(MASK, self.mask_bits)], to=ir.DataType.INT32)
        result = nodes.add("Gather", [nodes.constant(PATTERNS, np.uint8), number])
        return nodes.add("Reshape", [result, nodes.constant([-1], np.int64)])


class SparseCodebook(Masked):
    """sparsebook2 to sparsebook4: 2^bits codes that the weight shares."""

    family = "sparsebook"
    mark: ClassVar[str] = "b"
    is_learned: ClassVar[bool] = True

    @classmethod
    def members(cls) -> Iterable["SparseCodebook"]:
        """All formats of the family."""
        return map(cls, LISTED_BITS)

    @property
    def code_bits(self) -> int:
        """Bits of the int8 codes that integer kernels read."""
        return REACH.bit_length() + 1

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        *stored, scale = super().inputs
        return [*stored, "v", scale]

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:  # noqa: ARG002
        """The levels that fit what is not zero best, and the scales that go with them."""
        nonzero = rows != 0
        result, scale = fit(rows, importance * nonzero, self.bits, 1)
        return Grid(scale, 1, result.nearest, mask=nonzero)

    def levels(self, codes: np.ndarray) -> np.ndarray:
        """The codes that occur."""
        nonzero = np.unique(codes[codes != 0]).astype(np.float32)
        return nonzero if nonzero.size else np.ones(1, np.float32)

    def index_of(self, array: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Places in the list of the codes that occur, which always has as many."""
        index, listed = indices(array, 1)
        return index, [np.pad(listed.reshape(-1), (0, 2**self.bits - len(listed)), mode="edge")]

    def listed(self, nodes: Nodes[V]) -> V:
        """The list that is stored."""
        return nodes.array("v")
