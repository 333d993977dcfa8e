"""Second moments of what a layer multiplies its weight with, from sampled columns.

For a weight W (per group: outputs × d) the error of Ŵ on the data is tr(ΔW H ΔWᵀ) with H = E[x xᵀ]; after exact bias
correction only the centred part counts, H − E[x]E[x]ᵀ. One Moments object serves every bit width of its layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import Any, Self, overload

import numpy as np

from ptqc.execution.tensors import Compressed, Held, real
from ptqc.ir.layers import Layer
from ptqc.utils import store

# A gram matrix of d columns takes 8·d² bytes; wider layers keep its diagonal only.
WIDEST_GRAM = 8192
# Gram matrices of more bytes are in files.
SPOOLED = 96 * 2**20
# Sums of outputs that stand for all of them in `total_error`.
MIXTURES = 64
# Columns that are multiplied at once: with a tenth of them, writing a wide gram matrix takes most of the time.
TOGETHER = 512
# Images of one batch that are looked at, evenly spaced: a model may fix a batch of thousands.
MOST_IMAGES = 512
# Numbers that the columns of a layer may have together, and products that its gram matrix may take.
MOST_NUMBERS = 2**26
MOST_PRODUCTS = 2 * 10**10


@dataclass
class Moments:
    """Running sums over columns: gram (groups, d, d) or its diagonal (groups, d), total (groups, d), count.

    gram is taken about `origin`, the mean of the first columns: where the mean is far larger than the deviations,
    float32 would not hold the squares about zero. It lacks the columns that still wait for others. Weights that are
    multiplied with the same columns share one object, which several threads may ask for its moments. left_out: columns
    that were not finite, which count in nothing else.
    """

    gram: np.ndarray
    total: np.ndarray
    origin: np.ndarray
    count: int = 0
    left_out: int = 0
    waiting: list[np.ndarray] = field(default_factory=list)
    _multiplying: Lock = field(default_factory=Lock, repr=False, compare=False)

    @classmethod
    def empty(cls, groups: int, width: int, *, squares: bool = True) -> "Moments":
        """No columns yet. squares: whether they are added up, or the mean only."""
        shape: tuple[int, ...] = (groups, width, width) if width <= WIDEST_GRAM else (groups, width)
        if not squares:
            shape = (0, 0)
        gram = store.zeros(shape) if bytes_of(groups, width) >= SPOOLED else np.zeros(shape, np.float32)
        return cls(gram, np.zeros((groups, width)), np.zeros((groups, width), np.float32))

    def add(self, columns: np.ndarray) -> None:
        """Add columns (groups, d, n); n may be 0, where a sample has no positions."""
        if not columns.shape[-1]:
            return
        with np.errstate(invalid="ignore"):
            total = columns.sum(-1, dtype=np.float64)
        if not np.isfinite(total).all() and not (is_finite := np.isfinite(columns).all((0, 1))).all():
            self.left_out += int(np.count_nonzero(~is_finite))
            self.add(columns[..., is_finite])
            return
        self.total += total
        self.count += columns.shape[-1]
        if not self.gram.size:
            return
        self.waiting.append(columns)
        if _count(self.waiting) >= TOGETHER:
            self._multiply()
        elif columns.base is not None:
            # What they are a view of may be an output of ONNX Runtime, which keeps all memory of its session.
            self.waiting[-1] = columns.copy("K")

    def _multiply(self) -> None:
        """Take the waiting columns into gram."""
        if not self.waiting:
            return
        columns = _together(self.waiting)
        if columns.shape[-1] == self.count:
            self.origin = np.asarray(columns.mean(-1, dtype=np.float64), np.float32)
        self.waiting.clear()
        moved = columns - self.origin[..., None]
        self.gram += moved @ moved.transpose(0, 2, 1) if self.gram.ndim == 3 else (moved * moved).sum(-1)

    def of_mean(self) -> Self:
        """The same columns without their squares, which are most of the memory."""
        return replace(self, gram=np.zeros((0, 0), np.float32), waiting=[], _multiplying=Lock())

    @property
    def mean(self) -> np.ndarray:
        """E[x] (groups, d)."""
        return np.asarray(self.total / max(self.count, 1), np.float32)

    def second(self, centred: bool = True) -> np.ndarray:
        """E[x xᵀ], less E[x]E[x]ᵀ when centred; float32, of gram's shape."""
        with self._multiplying:
            self._multiply()
        mean = self.total / max(self.count, 1)
        moved = np.asarray(mean - self.origin, np.float32)
        second = self.gram / np.float32(max(self.count, 1)) - self._square(moved)
        if self.gram.ndim == 2:
            second = np.maximum(second, 0.0)
        return np.asarray(second if centred else second + self._square(np.asarray(mean, np.float32)))

    def _square(self, mean: np.ndarray) -> np.ndarray:
        return np.asarray(mean * mean if self.gram.ndim == 2 else mean[:, :, None] * mean[:, None, :])


def bytes_of(groups: int, width: int) -> int:
    """Bytes of a gram matrix, or of its diagonal."""
    return 4 * groups * (width**2 if width <= WIDEST_GRAM else width)


def factor_bytes(groups: int, width: int) -> int:
    """Bytes that factoring a gram matrix takes in float64; of a diagonal there is no factor."""
    return 32 * groups * width**2 if width <= WIDEST_GRAM else 0


@dataclass(frozen=True, eq=False)
class Joined:
    """Columns (groups, d, n) of neighbouring batches, as they are held. np.asarray gives them in one piece."""

    parts: Sequence[Held]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The real values, made anew where they are codes or of several batches."""
        return np.asarray(_together([real(part) for part in self.parts]), dtype)


def joined(parts: Iterable[Held]) -> Iterator[Joined]:
    """Columns of neighbouring batches together, TOGETHER of them where there are as many."""
    waiting: list[Held] = []
    for columns in parts:
        waiting.append(columns)
        if _count(waiting) >= TOGETHER:
            yield Joined(waiting)
            waiting = []
    if waiting:
        yield Joined(waiting)


def _together(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _count(parts: Iterable[Held]) -> int:
    return sum(columns.shape[-1] for columns in parts)


def error(delta: np.ndarray, second: np.ndarray) -> np.ndarray:
    """E‖ΔW x‖² per output: delta (groups, R, d), second from `Moments.second`. Returns (groups, R)."""
    return np.asarray((weighted(delta, second) * delta).sum(-1))


def total_error(delta: np.ndarray, second: np.ndarray) -> float:
    """E‖ΔW x‖², as `error` gives it, summed over outputs and groups.

    Of many outputs MIXTURES sums with random signs are taken (Hutchinson 1989): unbiased, with a deviation of at most
    √(2 / MIXTURES), and of about √(2 / (MIXTURES · R)) where outputs differ; the signs are always the same.
    """
    if second.ndim == 3 and delta.shape[1] > MIXTURES:
        signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), (MIXTURES, delta.shape[1]))
        delta = signs @ delta / np.float32(np.sqrt(MIXTURES))
    return float(error(delta, second).sum())


def weighted(rows: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows (groups, R, d) times second moments, or their diagonal."""
    return np.asarray(rows * second[:, None, :] if second.ndim == 2 else rows @ second)


def shrunk(second: np.ndarray, count: int) -> np.ndarray:
    """Second moments of few columns, shrunk towards a multiple of the identity.

    Oracle approximating shrinkage (Chen, Wiesel, Eldar, Hero 2010, eq. 23): ρ from tr(S²), tr(S)² and n.
    """
    if second.ndim == 2:
        return second
    width = second.shape[-1]
    trace = np.trace(second, axis1=1, axis2=2).astype(np.float64)
    square = _sum_of_squares(second)
    denominator = (count + 1 - 2 / width) * (square - trace**2 / width)
    numerator = (1 - 2 / width) * square + trace**2
    rho = np.where(denominator > 0, np.minimum(1.0, numerator / np.maximum(denominator, 1e-300)), 1.0)
    identity = np.eye(width, dtype=np.float32) * (rho * trace / width)[:, None, None].astype(np.float32)
    return np.asarray((1 - rho)[:, None, None].astype(np.float32) * second + identity)


def _sum_of_squares(second: np.ndarray) -> np.ndarray:
    """tr(S²) in float64, row by row where a copy of the whole would be large."""
    if second.nbytes < SPOOLED:
        return np.asarray((second.astype(np.float64) ** 2).sum((1, 2)))
    return np.array([sum(float((row.astype(np.float64) ** 2).sum()) for row in group) for group in second])


@dataclass(frozen=True)
class ColumnSample:
    """Which columns of a layer are looked at: at most `positions` output positions of each sample, drawn by `seed`.

    usual: positions that a sample has in the mean. One that has more of them gives more columns, so that a position
    counts the same in samples of every size; 0: all samples have as many.
    """

    layer: Layer
    positions: int
    seed: int
    usual: int = 0

    def choose(self, input_shape: tuple[int, ...], index: int) -> np.ndarray | None:
        """Flat output positions for sample `index`; None means all."""
        total = self.total(input_shape)
        wanted = -(-self.positions * total // self.usual) if self.usual else self.positions
        if total <= wanted:
            return None
        return _positions(self.seed, index, total, wanted)

    def total(self, input_shape: tuple[int, ...]) -> int:
        """Output positions of one sample."""
        return int(np.prod(self.out_shape(input_shape)))

    def out_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the positions of the layer's output for one sample: spatial, or the leading axes of a product."""
        layer = self.layer
        if not layer.is_convolution:
            return (*input_shape[1:-1],) or (1,)
        rank = len(layer.kernel)
        return tuple(
            (input_shape[2 + i] + layer.pads[i] + layer.pads[i + rank] - layer.dilations[i] * (layer.kernel[i] - 1) - 1)
            // layer.strides[i]
            + 1
            for i in range(rank)
        )

    @overload
    def inputs(self, x: np.ndarray, index: int) -> np.ndarray: ...
    @overload
    def inputs(self, x: Held, index: int) -> Held: ...
    def inputs(self, x: Held, index: int) -> Held:
        """Columns (groups, d, n) of a batch x, held as it is; sample numbers start at `index`."""
        if isinstance(x, Compressed):
            return x.with_codes(lambda values, zero: self._inputs(values, index, zero))
        return self._inputs(x, index)

    def outputs(self, y: Held, input_shape: tuple[int, ...], index: int) -> Held:
        """The layer's outputs (groups, R, n) at the same columns, held as y is."""
        if isinstance(y, Compressed):
            return y.with_codes(lambda values, _: self._outputs(values, input_shape, index))
        return self._outputs(y, input_shape, index)

    def _inputs(self, x: np.ndarray, index: int, zero: int = 0) -> np.ndarray:
        """The same of an array whose borders are padded with `zero`."""
        if not self.layer.is_convolution:
            return self._rows(x, index).T[None]
        return self._windows(x, index, zero)

    def _outputs(self, y: np.ndarray, input_shape: tuple[int, ...], index: int) -> np.ndarray:
        layer = self.layer
        if not layer.is_convolution:
            return self._rows(y, index).T[None]
        parts = []
        for i in images(len(y)):
            chosen = self.choose(input_shape, index + i)
            flat = y[i].reshape(layer.groups, layer.channels // layer.groups, -1)
            parts.append(flat if chosen is None else flat[:, :, chosen])
        return np.concatenate(parts, axis=-1)

    def _rows(self, x: np.ndarray, index: int) -> np.ndarray:
        if x.ndim == 2:
            return x
        parts = []
        for i in images(len(x)):
            rows = x[i].reshape(-1, x.shape[-1])
            chosen = self.choose(x.shape, index + i)
            parts.append(rows if chosen is None else rows[chosen])
        return np.concatenate(parts)

    def _windows(self, x: np.ndarray, index: int, zero: int) -> np.ndarray:
        """im2col of a batch at the chosen positions."""
        layer, rank = self.layer, len(self.layer.kernel)
        out, looked_at = self.out_shape(x.shape), images(len(x))
        sides = [(layer.pads[i], x.shape[2 + i] + layer.pads[i] + layer.pads[i + rank]) for i in range(rank)]
        inner = tuple(slice(before, before + size) for (before, _), size in zip(sides, x.shape[2:], strict=True))
        # One image inside the border that all share. np.pad takes as long as the windows themselves.
        padded = np.full((x.shape[1], *(side for _, side in sides)), zero, x.dtype)
        places = np.arange(padded[0].size).reshape(padded.shape[1:])
        first = places[tuple(slice(0, n * step, step) for n, step in zip(out, layer.strides, strict=True))].reshape(-1)
        taps = places[tuple(slice(0, n * step, step) for n, step in zip(layer.kernel, layer.dilations, strict=True))]
        parts = []
        for i in looked_at:
            padded[(slice(None), *inner)] = x[i]
            chosen = self.choose(x.shape, index + i)
            place = taps.reshape(-1, 1) + (first if chosen is None else first[chosen])
            flat = np.take(padded.reshape(len(padded), -1), place, axis=1, mode="clip")
            parts.append(flat.reshape(layer.groups, -1, place.shape[1]))
        return np.concatenate(parts, axis=-1)


@lru_cache(maxsize=4096)
def _positions(seed: int, index: int, total: int, wanted: int) -> np.ndarray:
    """Drawn once for what a layer reads and what it gives."""
    return np.sort(np.random.default_rng((seed, index)).choice(total, wanted, replace=False))


def with_even(second: np.ndarray) -> np.ndarray:
    """Second moments, or their diagonals, plus those of inputs that all count the same and together as much."""
    diagonal = second if second.ndim == 2 else np.diagonal(second, axis1=1, axis2=2)
    mean = diagonal.mean(-1, keepdims=True)
    if second.ndim == 2:
        return np.asarray(second + mean)
    return np.asarray(second + mean[..., None] * np.eye(second.shape[-1], dtype=second.dtype))


def images(batch: int) -> range:
    """Which images of a batch are looked at."""
    return range(0, batch, max(1, -(-batch // MOST_IMAGES)))


def positions_per_sample(layer: Layer, samples: int, times: int = 1) -> int:
    """Columns to take from each sample: enough in total for the gram matrix to be well conditioned.

    times: as many more of them. Wide layers get fewer, as MOST_PRODUCTS says.
    """
    width = layer.width
    enough = min(max(16 * width, 8192), 32768)
    wanted = max(min(times * enough, MOST_PRODUCTS // width**2), min(4 * width, enough))
    return max(1, -(-min(wanted, MOST_NUMBERS // width) // max(samples, 1)))
