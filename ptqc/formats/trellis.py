"""Trellis codes: a sequence of weights is a path through a trellis, and each weight takes the few bits of one step.

A state is the last 8 bits of the path, and one table of 256 codes says what each state stands for. A step of k bits
chooses one of 2^k codes, and the steps before say which 2^k these are: as many bits as a plain grid takes, but the
choices of neighbours fill space better than a grid does (Marcellin and Fischer 1990, Trellis coded quantization; as a
bitshift trellis for weights Tseng et al. 2024, QTIP, arXiv 2406.11235). A sequence is all outputs of one column of the
layer's matrix; in a table of which rows are picked it is a row, so that each can be unpacked alone. It bites its tail:
it ends in the state in which it began, so that no output has fewer choices than others.

Steps of half bits take one bit more at even outputs than at odd ones. All widths of all weights share the table and one
function that unpacks them: a convolution of the bits with the powers of two, at a stride of k, gives the states.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from ptqc.errors import InternalError, UsageError
from ptqc.formats.base import Format, Grid, HalfBits, Nodes, Scaled, Stated, V, costs_of, spread, stand_in
from ptqc.formats.codebook import Codebook
from ptqc.formats.levels import REACH
from ptqc.formats.planes import far_bits
from ptqc.formats.scales import storable
from ptqc.formats.vector_codebook import VectorCodebook

# Of two outputs together.
BITS = (3, 4, 5, 6, 7, 8, 10)
STATE_BITS = 8
# What each state stands for: learned by Lloyd's iteration from the weights of seven networks, for all widths together.
# fmt: off
TABLE = np.array([
    13, 3, 9, 1, -13, -2, 5, -6, -15, 1, -17, 16, -3, 6, -9, 8, -4, -21, 11, 29, 33, -11, 18, 21, 9, 23, 0, 14, -8, 2,
    -5, 4, 21, -7, -14, -31, 40, 8, 0, -18, 3, -4, 25, 0, 7, -8, -15, 17, 6, 2, -11, -6, -3, -20, 10, 15, -61, -1,
    -12, -15, -9, -5, -7, 28, 3, 5, -5, 8, -2, 63, -14, 13, -3, -18, -9, 27, -44, -24, 2, -13, -9, 10, -2, -12, 11,
    23, -19, 17, 4, 0, 7, -1, -28, -10, 14, -7, -6, 20, 16, -17, 9, 14, -3, 4, -25, -2, 13, -4, 1, 0, 7, -9, 2, -16,
    -12, 11, 20, 32, 3, -5, 26, -13, 10, -7, 6, 19, 2, -1, -12, -1, -8, -3, 3, 4, 24, -27, -10, 8, 1, -16, -6, 30,
    -20, 13, 16, -5, -4, -22, 0, 10, 4, -10, -2, -24, 12, 36, -12, -18, 6, 20, 0, 9, -1, 14, 5, -10, -25, 25, 7, -8,
    -30, 22, -13, -16, -1, -21, 1, 4, -7, -2, 48, 17, -33, 9, -8, 6, -27, 2, -15, 11, -3, -19, -7, -5, 4, -10, -2, -1,
    12, -16, 14, -11, 6, -5, 2, -13, 9, 1, 9, -9, 1, 22, 4, 5, -11, 11, 11, -7, 18, 6, 0, -14, -22, -3, -17, 0, 2, 9,
    -8, -6, 15, -11, -19, -37, -3, 4, 8, 12, 18, -5, -1, 13, 5, 19, -23, -4, -6, -14, 16, 3, -15, -20, -4, -2, -10, 7,
], np.float32)
# fmt: on
STORED_TABLE = TABLE.astype(np.int8)
ROW_OF_TABLE = STORED_TABLE[None]  # as GatherElements reads it
# Standard deviation of normalized weights, in codes, that suits the table best, by width.
DEVIATION = {3: 14.0, 4: 13.32, 5: 12.9, 6: 12.45, 7: 12.2, 8: 12.07, 10: 11.73}
# Columns that scales are fitted on, and how often.
SEARCHED_COLUMNS = 96
SCALE_ITERATIONS = 2
# In smaller models the table and the function take what the codes save.
ENOUGH_NUMBERS = 2**17
# Fitted levels may lose less where more of the power than this lies beyond the reach of the table (of a Laplace
# distribution 0.001), or where the mean is not small beside the deviation.
TAIL, SKEWED = 0.015, 2
CODEBOOKS: tuple[Format, ...] = (*Codebook.members(), *VectorCodebook.members())
# Of fewer outputs, biting its tail leaves a sequence too few choices.
SHORTEST = 16
# For a dimension that follows from what is stored.
ALL_ROWS = -1


class Trellis(HalfBits):
    """tcq1.5 to tcq5: paths through a trellis of 256 states. bits: of two outputs."""

    family = "tcq"
    mark: ClassVar[str] = "y"
    by_column: ClassVar[bool] = True
    is_learned: ClassVar[bool] = True
    is_regular: ClassVar[bool] = False
    from_numbers: ClassVar[int] = ENOUGH_NUMBERS
    parameters: ClassVar[tuple[str, ...]] = ("n", "h", "k")

    @property
    def steps(self) -> tuple[int, int]:
        """Bits of a step to outputs at even and at odd places."""
        return -(-self.bits // 2), self.bits // 2

    @property
    def has_halves(self) -> bool:
        """Whether these differ."""
        return self.bits % 2 != 0

    @classmethod
    def members(cls) -> Iterable["Trellis"]:
        """All formats of the family, those of tables behind the others."""
        return [form(bits) for form in (Trellis, RowTrellis) for bits in BITS]

    @classmethod
    def offered(cls, widths: Sequence[int]) -> list[Scaled]:
        """Those of at least the narrowest, or half a bit less, and at most the widest bits per weight."""
        low, high = 2 * min(widths) - 1, 2 * max(widths)
        return [form(bits) for form in (Trellis, RowTrellis) for bits in BITS if low <= bits <= high]

    @classmethod
    def lacks(cls) -> str:
        """Numba, which compiles the search for paths."""
        try:
            from numba import njit  # noqa: F401
        except (ImportError, OSError) as error:  # also where NumPy is newer than Numba knows, or LLVM does not load
            return f"trellis codes (formats {cls.family}) need Numba: pip install 'numba>=0.61' ({error})"
        return ""

    @classmethod
    def superseded(cls, rows: np.ndarray, tried: Collection[Format]) -> Collection[Format]:
        """Codebooks of as many bits, but of weights with heavy tails or of one sign, which their levels fit better."""
        power = np.square(rows, dtype=np.float64).mean(-1, keepdims=True)
        reach = REACH / max(DEVIATION.values()) * np.sqrt(power)
        beyond = float(np.square(np.maximum(np.abs(rows) - reach, 0)).mean())
        is_even = SKEWED * abs(float(rows.mean(dtype=np.float64))) <= np.sqrt(power.mean())
        if not is_even or beyond > TAIL * power.mean():
            return ()
        widths = {form.bits_per_weight for form in tried}
        return [form for form in CODEBOOKS if form.bits_per_weight in widths]

    def fits(self, width: int, channels: int) -> bool:  # noqa: ARG002
        """Whether there are enough outputs, and pairs of them where their bits differ."""
        return channels >= SHORTEST and not (self.has_halves and channels % 2)

    @property
    def within_channels(self) -> bool:
        """Whether neighbours in a channel have to be neighbours where they are stored."""
        return True

    @property
    def unpacked_as(self) -> Format:
        """One function unpacks all widths."""
        return Trellis(BITS[0])

    def is_padded(self, size: int) -> bool:
        """Whether bits fill the last byte."""
        return bool(size * self.bits_per_weight % 8)

    def stated_by(self, parameters: Mapping[str, Sequence[int]]) -> Format:
        """The bits of the first step are those of a state that do not come before it; half bits span two steps."""
        first, stride = STATE_BITS - len(parameters["h"]), parameters["k"][0]
        family = RowTrellis if parameters["n"][0] == ALL_ROWS else Trellis
        return family(2 * first if stride == first else stride)

    def parameters_of(self, shape: Sequence[int]) -> Mapping[str, list[int]]:
        """n: shape of the bits, a row for each bit of an output; h: the last rows, put before the first; k: strides."""
        rows, columns = int(shape[0]) * self.bits // 2, int(np.prod(shape[1:]))
        first = self.steps[0]
        stride = self.bits if self.has_halves else first
        return {"n": [1, 1, rows, columns], "h": [*range(rows - STATE_BITS + first, rows)], "k": [stride, 1]}

    def grid(self, rows: np.ndarray, importance: np.ndarray, *, keeps_sign: bool = False) -> Grid:  # noqa: ARG002
        """Scales by the deviation of each row, then by least squares for the paths of some columns."""
        shape, width = rows.shape[:-1], rows.shape[-1]
        exponent = int(np.frexp(np.abs(rows).max(initial=0.0))[1])  # squares of small numbers are none of float32
        weights = np.broadcast_to(importance, rows.shape)
        flat, weights = np.ldexp(rows, -exponent).reshape(-1, width).T, weights.reshape(-1, width).T
        power = (weights * flat * flat).sum(0) / np.maximum(weights.sum(0), 1e-30)
        scale = np.maximum(np.sqrt(power), 1e-30) / DEVIATION[self.bits]
        some = np.unique(np.linspace(0, width - 1, SEARCHED_COLUMNS).astype(int))
        x, weight = flat[some], weights[some]
        for _ in range(SCALE_ITERATIONS):
            codes = self.nearest(x / scale, costs_of(weight, scale))
            inner, norm = (weight * x * codes).sum(0), (weight * codes * codes).sum(0)
            fitted = np.divide(inner, norm, out=np.zeros_like(inner), where=norm > 0)
            scale = np.where(fitted > 0, fitted, scale)
        stored = storable(np.ldexp(scale.astype(np.float32), exponent).reshape(shape), np.abs(rows).max(-1))
        return Grid(stored, 1, _alone, sequences=self)

    def nearest(self, ratio: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """The codes (d, R) of the paths of least error, float32; see `ColumnRounding`."""
        return path_search().codes(ratio, costs, TABLE, self.steps)

    def rounded_in_turn(
        self, values: np.ndarray, codes: np.ndarray | None, costs: np.ndarray, coupling: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes (d, groups · R) of paths, column by column, and their moves; see `ColumnRounding`."""
        return path_search().rounded_in_turn(values, codes, costs, coupling, TABLE, self.steps)

    def levels(self, codes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """The codes that states stand for."""
        return np.unique(TABLE)

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Bit after bit of all paths, the highest of a step first; the table; what bits weigh in states; the scales."""
        bits = self._bits(codes.reshape(len(codes), -1).T)
        return [far_bits(np.concatenate(bits)), ROW_OF_TABLE, self.powers, scale]

    def sized(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """What `pack` gives, without the search for the paths of these codes, and without Numba."""
        size = -(-codes.size * self.bits // 16)
        return [stand_in(codes, size), ROW_OF_TABLE, self.powers, scale]

    def _bits(self, sequences: np.ndarray) -> list[np.ndarray]:
        """Bit after bit of the paths with these codes (n, R), each (n,)."""
        steps = step_search().steps(sequences, STORED_TABLE, self.steps)
        if steps is None:
            raise InternalError(f"a sequence of codes is no path of {self}")
        places = (range(self.steps[t % 2] - 1, -1, -1) for t in range(steps.shape[1]))
        return [(step >> place) & 1 for step, own in zip(steps.T, places, strict=True) for place in own]

    @property
    def powers(self) -> np.ndarray:
        """What the bits of a path weigh in a state, (1, 1, 8, 1); of half bits in those of two outputs."""
        places = (0, self.steps[1]) if self.has_halves else (0,)
        result = np.zeros((len(places), 1, STATE_BITS + places[-1], 1), np.uint8)
        for own, place in zip(result, places, strict=True):
            own[0, place : place + STATE_BITS, 0] = 1 << np.arange(STATE_BITS - 1, -1, -1)
        return result

    @property
    def shared(self) -> Mapping[str, np.ndarray]:
        """The table, and what bits weigh."""
        halves = f" by steps of {self.steps}" if self.has_halves else ""
        return {"states of a trellis": ROW_OF_TABLE, f"bits of a state{halves}": self.powers}

    def planes(self) -> list[str]:
        """Short names of what holds the indices."""
        return ["p"]

    @property
    def inputs(self) -> list[str]:
        """Short names of the arrays that are stored."""
        return ["p", "v", "w", "s"]

    def unpack(self, nodes: Nodes[V], to: ir.DataType) -> V:
        """A state is the last 8 bits; those before the first step are the last ones of the path."""
        bits, last = nodes.bits("p", Stated("n")), nodes.add("Constant", [], value_ints=Stated("h"))
        path = nodes.add("Concat", [nodes.add("Gather", [bits, last], axis=2), bits], axis=2)
        states = nodes.add("ConvInteger", [path, nodes.array("w")], strides=Stated("k"))
        states = nodes.add("Transpose", [states], perm=[0, 2, 1, 3])  # outputs at even and odd places in turn
        codes = nodes.reshaped(nodes.entries("v", states))
        return codes if to == ir.DataType.INT8 else nodes.add("Cast", [codes], to=to)


class RowTrellis(Trellis):
    """tcq1.5row to tcq5row: paths along the rows of a table, each of whole bytes."""

    by_column: ClassVar[bool] = False
    by_row: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Its bits for each weight, and that rows are sequences."""
        return f"{super().name}row"

    def fits(self, width: int, channels: int) -> bool:  # noqa: ARG002
        """Whether rows are long enough, and take whole bytes."""
        return width >= SHORTEST and width * self.bits % 16 == 0

    @classmethod
    def suits(cls, rows: np.ndarray) -> bool:
        """Whether there are numbers below 0: a path may take the sign from small ones, which a root might miss."""
        return bool((rows < 0).any())

    @property
    def within_channels(self) -> bool:
        """Whether neighbours in a channel have to be neighbours where they are stored: they are."""
        return False

    def parameters_of(self, shape: Sequence[int]) -> Mapping[str, list[int]]:
        """As of a single column, for any number of rows, which are the last axis."""
        column = super().parameters_of((shape[-1], 1))
        return {**column, "n": [ALL_ROWS, *column["n"][1:]]}

    def rounded(self, weight: np.ndarray, axis: int, *, powers: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Codes for the deviation of each channel, and the scales that then suit them best."""
        channels = _by_channel(weight, axis)
        largest = np.abs(channels).max(-1)
        deviation = np.sqrt(_products(channels, channels) / channels.shape[1])
        scale = storable(deviation / DEVIATION[self.bits], largest)
        if powers:
            scale = Grid(scale, 1, _alone, sequences=self).with_powers(channels, channels).scale
        ratio = (weight / spread(scale, weight.ndim, axis)).reshape(-1, weight.shape[-1])
        codes = self.nearest(ratio, np.ones_like(ratio)).reshape(weight.shape).astype(np.int8)
        if not powers:
            coded = _by_channel(codes, axis)
            inner, norm = _products(channels, coded), _products(coded, coded)
            scale = storable(np.where(inner > 0, inner / np.maximum(norm, 1), scale), largest)
        return codes, scale

    def pack(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """Row after row the bits of its path, (rows, 1, bytes); then as of columns."""
        bits = np.stack(self._bits(codes.reshape(-1, codes.shape[-1])), 1)
        return [far_bits(bits)[:, None], ROW_OF_TABLE, self.powers, scale]

    def sized(self, codes: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
        """The same of rows."""
        rows = codes.reshape(-1, codes.shape[-1])
        of_row = rows.shape[1] * self.bits // 16
        path = stand_in(codes, len(rows) * of_row).reshape(len(rows), 1, of_row)
        return [path, ROW_OF_TABLE, self.powers, scale]


def _by_channel(array: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Inner products of rows, float64: squares of small numbers are none of float32."""
    return np.asarray(np.einsum("rd,rd->r", one, other, dtype=np.float64))


class PathSearch(Protocol):
    """What `ptqc.formats.viterbi` offers."""

    def codes(self, ratio: np.ndarray, weights: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray:
        """The codes of the best paths."""

    def rounded_in_turn(
        self,
        values: np.ndarray,
        codes: np.ndarray | None,
        costs: np.ndarray,
        coupling: np.ndarray,
        table: np.ndarray,
        bits: tuple[int, int],
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes of the best paths of columns that depend on each other, and by how much these were moved."""


class StepSearch(Protocol):
    """What `ptqc.formats.trellis_steps` offers."""

    def steps(self, columns: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray | None:
        """The steps of paths with these codes."""


def path_search() -> PathSearch:
    """The search for paths. Raises UsageError where Numba, which compiles it, is not installed or does not work."""
    _check_numba()
    from ptqc.formats import viterbi

    return viterbi


def step_search() -> StepSearch:
    """The search for the steps of a path. Raises UsageError as `path_search`."""
    _check_numba()
    from ptqc.formats import trellis_steps

    return trellis_steps


def _check_numba() -> None:
    if lack := Trellis.lacks():
        raise UsageError(lack)


def _alone(_ratio: np.ndarray, _metric: np.ndarray | None) -> np.ndarray:
    raise InternalError("a code of a trellis depends on its neighbours: ask for whole sequences")
