"""From observed values to a quantization range, and from a range to scale and zero point.

mse: the range whose quantizer has the smallest expected squared error over the histogram, the values of a bin taken as
uniform. entropy: the range with the smallest Kullback-Leibler divergence between the histogram and its quantized copy,
after Migacz, "8-bit inference with TensorRT" (GTC 2017), with a low and a high clip instead of one magnitude.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ptqc.formats.scales import powers_beside
from ptqc.plugins import Plugin, PluginKind, by_name
from ptqc.utils.arguments import unknown

# Streaming observers of one tensor's values: state of fixed size, one pass, the same result in any order of samples.
#
# The histogram's bins lie on a dyadic grid: bin k covers [k * 2^e, (k + 1) * 2^e). e is the smallest exponent with
# which the range seen so far fits the fixed number of bins. When the range grows, pairs of bins merge (k becomes k >>
# 1), which loses no count and gives exactly the histogram that a second pass over all values would.

BINS = 2048
SAMPLED = 200_000  # values of one update that enter the histogram; more would cost time and change no range
# Bins narrower than this fraction of the largest magnitude would be finer than float32's own spacing.
FINEST = 22
SMALLEST_EXPONENT = -1000


@dataclass
class RangeObserver:
    """What is known about the finite values of one tensor.

    count, low, high: over every value.
    counts: values in each bin, over a deterministic subset of each update; bin i is grid cell first + i of width
    2^exponent. zeros: values of that subset that are exactly 0. integral: whether all of that subset are integers.
    """

    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    first: int = 0
    exponent: int = SMALLEST_EXPONENT
    zeros: int = 0
    integral: bool = True

    def update(self, x: np.ndarray, most: int = SAMPLED) -> None:
        """Add a tensor of any shape and numeric dtype; at most `most` of its values to the histogram."""
        values = np.asarray(x).reshape(-1)
        if values.dtype.kind not in "fiu":  # bool and bfloat16 lack some of the arithmetic below
            values = values.astype(np.float32)
        if not values.size:
            return
        low, high = values.min(), values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            self.update(values[np.isfinite(values)], most)
            return
        self.count += values.size
        self._add_extremes(float(low), float(high))
        self._add_counts(_subset(values, most))

    def _add_extremes(self, low: float, high: float) -> None:
        """Widen the range, and with it the bins as far as needed."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        exponent = max(self.exponent, _exponent(self.low, self.high))
        first = _cell(self.low, exponent)
        if (exponent, first) == (self.exponent, self.first):
            return
        cells = np.flatnonzero(self.counts)
        # Shifts beyond 63 bits are undefined in NumPy, and 63 already leaves only the sign, as more would.
        moved = ((cells + self.first) >> min(exponent - self.exponent, 63)) - first
        merged = np.zeros(BINS, np.int64)
        np.add.at(merged, moved, self.counts[cells])
        self.counts, self.first, self.exponent = merged, first, exponent

    def _add_counts(self, values: np.ndarray) -> None:
        cells = np.floor(values.astype(np.float64) * 2.0**-self.exponent)
        self.counts += np.bincount(cells.astype(np.int64) - self.first, minlength=BINS)
        self.zeros += values.size - int(np.count_nonzero(values))
        self.integral = self.integral and bool((values == np.floor(values)).all())

    @property
    def is_blank(self) -> bool:
        """Whether no value other than 0 was seen."""
        return not self.count or self.low == self.high == 0

    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Counts (n,) and float64 edges (n + 1,) of the bins from the lowest value's to the highest's; n <= BINS."""
        if not self.count:
            return np.zeros(0, np.int64), np.zeros(1)
        used = _cell(self.high, self.exponent) - self.first + 1
        return self.counts[:used].copy(), np.ldexp(np.arange(self.first, self.first + used + 1.0), self.exponent)


def _cell(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def _exponent(low: float, high: float) -> int:
    """The smallest e for which [low, high] touches at most BINS cells of width 2^e."""
    magnitude = max(abs(low), abs(high))
    exponent = max(math.frexp(magnitude)[1] - FINEST, SMALLEST_EXPONENT) if magnitude else SMALLEST_EXPONENT
    while _cell(high, exponent) - _cell(low, exponent) >= BINS:
        exponent += 1
    return exponent


def _subset(values: np.ndarray, most: int) -> np.ndarray:
    """At most `most` values at a constant stride.

    The stride shares no factor with the size, hence none with any axis: with one it would visit only some channels.
    """
    stride = -(-values.size // most)
    while math.gcd(stride, values.size) > 1:
        stride += 1
    return values[::stride]


Method = Literal["minmax", "percentile", "entropy", "mse"]
# auto: of TRIED the first; where a tensor matters, the one that loses least at the outputs.
# A name alone is that of an observer that an installed package adds.
Observer = Literal["auto", Method] | str
TRIED: tuple[Method, ...] = ("mse", "minmax", "percentile")
Range = tuple[float, float]
RangeMethod = Callable[[RangeObserver, int], Range]

SMALLEST_SCALE = np.finfo(np.float32).tiny  # below it float32 is subnormal, which kernels may flush to 0
COARSE = 2.0 ** -np.arange(0, 10, 0.5)  # clips tried first, as fractions of the observed extreme; 1 is no clip
MOST_CLIPPED = 0.1  # share of values; clipping nearly all leaves one bin, which any quantizer copies perfectly
FINE = 2.0 ** np.linspace(-0.5, 0.5, 11)  # then around the best
KEPT = 0.9999  # share of the values that the method percentile keeps


def affine_params(low: float, high: float, bits: int, signed: bool = False) -> tuple[np.float32, int]:
    """Scale and zero point of the affine quantizer of 2^bits levels over [low, high] widened to contain 0.

    Real 0 is exactly one of the codes. A range without negative values has zero point 0 (signed: -2^(bits - 1)).
    The scale is never 0, subnormal, infinite or NaN; an empty range has scale 1.
    Raises ValueError for a range that is not finite or is reversed.
    """
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ValueError(f"quantization range [{low}, {high}], expected two finite numbers in order")
    low, high = min(low, 0.0), max(high, 0.0)
    levels = 2**bits - 1
    bottom = -(2 ** (bits - 1)) if signed else 0
    if low == high:
        return np.float32(1), bottom
    exact = high / levels - low / levels  # divided first: the difference of two float64 could overflow
    scale = np.float32(min(max(exact, float(SMALLEST_SCALE)), float(np.finfo(np.float32).max)))
    zero = int(np.clip(np.rint(-low / float(scale)), 0, levels))
    most = np.float32(float(np.finfo(np.float32).max) / max(zero, levels - zero))  # every code stands for a float32
    return min(scale, np.nextafter(most, np.float32(0))), bottom + zero


def power_params(observer: RangeObserver, low: float, high: float, bits: int) -> tuple[np.float32, int]:
    """The same with a power of two as scale, above or below that of [low, high]: the one of less squared error."""
    scale, zero = affine_params(low, high, bits)
    if not observer.count or low == high:
        return scale, zero
    tried = []
    for power in np.stack(powers_beside(np.array(scale))):
        place = int(np.clip(np.rint(-min(low, 0.0) / float(power)), 0, 2**bits - 1))
        tried.append((_squared_error(observer, float(power), place, bits), power, place))
    _, scale, zero = min(tried, key=lambda one: one[0])
    return scale, zero


def symmetric_params(
    observer: RangeObserver, low: float, high: float, bits: int, *, method: str, powers: bool = False
) -> tuple[np.float32, int]:
    """Scale and zero point of the quantizer of 2^bits levels whose zero point is the middle one, over [low, high].

    With the method mse, the reach is the one of least squared error, as [low, high] was chosen for other levels.
    powers: whether the scale is to be a power of two: the one beside it of less squared error.
    """
    middle = 2 ** (bits - 1)
    reach, most = max(-low, high), max(-observer.low, observer.high)
    if not observer.count or not reach > 0:
        return np.float32(1), middle
    reaches = most * np.outer(COARSE, FINE).ravel() if method == "mse" else np.array([reach])
    scales = np.maximum((np.minimum(reaches, most) / (middle - 1)).astype(np.float32), SMALLEST_SCALE)
    if powers:
        scales = np.concatenate(powers_beside(scales))
    errors = [_squared_error(observer, float(scale), middle, bits) for scale in scales]
    return np.float32(scales[int(np.argmin(errors))]), middle


def choose_range(observer: RangeObserver, method: str, bits: int = 8) -> Range:
    """The range (low, high) to quantize the observed values to; (0, 0) when nothing was observed.

    Raises UsageError for an unknown method, and for one of a package that fails or gives no range.
    """
    chosen = METHODS.get(method) or added_method(_plugin(method))  # type: ignore[call-overload]
    return chosen(observer, bits) if observer.count else (0.0, 0.0)


def known_methods() -> tuple[str, ...]:
    """Names of all methods: those of ptqc, and those that installed packages add."""
    return (*METHODS, *by_name(PluginKind.OBSERVER))


def check_method(method: str) -> None:
    """Raises UsageError where a range cannot be chosen by a method of this name."""
    if method not in METHODS:
        added_method(_plugin(method))


def _plugin(method: str) -> Plugin:
    known = by_name(PluginKind.OBSERVER)
    if method not in known:
        raise unknown("observer", [str(method)], ["auto", *known_methods()])
    return known[method]


def added_method(plugin: Plugin) -> RangeMethod:
    """A method that a package adds. Raises UsageError where it cannot be loaded or is no function."""
    if plugin.name in METHODS or plugin.name == "auto":
        raise plugin.fault("has the name of one of ptqc's own; give another one")
    function = plugin.load()
    if not callable(function):
        raise plugin.fault("is not a function of a RangeObserver and a number of bits")

    def method(observer: RangeObserver, bits: int) -> Range:
        try:
            low, high = map(float, function(observer, bits))
        except Exception as error:
            raise plugin.fault(f"failed: {type(error).__name__}: {error}") from error
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise plugin.fault(f"gave [{low:g}, {high:g}]; give two finite numbers, the lower one first")
        return low, high

    return method


def _minmax(observer: RangeObserver, _bits: int) -> Range:
    return observer.low, observer.high


def _percentile(observer: RangeObserver, _bits: int) -> Range:
    """KEPT of the values; where they have both signs, what is lost is shared by both ends."""
    counts, edges = observer.histogram()
    tail = 1 - KEPT
    if observer.low < 0 < observer.high:
        tail /= 2
    cumulative = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
    low, high = np.interp([tail, 1 - tail], cumulative, edges)
    if observer.low >= 0:
        low = observer.low
    if observer.high <= 0:
        high = observer.high
    return float(np.clip(low, observer.low, observer.high)), float(np.clip(high, observer.low, observer.high))


def _mse(observer: RangeObserver, bits: int) -> Range:
    return _search(observer, lambda lows, highs: _squared_errors(observer, lows, highs, bits))


def _entropy(observer: RangeObserver, bits: int) -> Range:
    return _search(observer, lambda lows, highs: _divergences(observer, lows, highs, bits))


METHODS: Mapping[Method, RangeMethod] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}


def _search(observer: RangeObserver, losses: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Range:
    """The pair of clips with the smallest loss on a coarse grid, then on a fine one around it.

    losses: lows (n,), highs (n,) -> (n,). The unclipped range is always among the pairs.
    """
    low, high = min(observer.low, 0.0), max(observer.high, 0.0)
    best = _best(low * COARSE, high * COARSE, losses)
    return _best(np.maximum(best[0] * FINE, low), np.minimum(best[1] * FINE, high), losses)


def _best(lows: np.ndarray, highs: np.ndarray, losses: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Range:
    """The best of all pairs; of equal losses the first, so that the order of lows and highs breaks ties."""
    grid = np.array([(low, high) for low in np.unique(lows) for high in np.unique(highs)[::-1]])
    low, high = grid[np.argmin(losses(grid[:, 0], grid[:, 1]))]
    return float(low), float(high)


def _squared_errors(observer: RangeObserver, lows: np.ndarray, highs: np.ndarray, bits: int) -> np.ndarray:
    """Expected squared error (n,) of quantizing the observed values to each of n ranges, as affine_params would.

    Zeros have no error in any of them and are left out; a bin's other values count as uniform within it.
    """
    errors = np.empty(len(lows))
    for index, (low, high) in enumerate(zip(lows, highs, strict=True)):
        scale, zero = affine_params(low, high, bits)
        errors[index] = _squared_error(observer, float(scale), zero, bits)
    return errors


def _squared_error(observer: RangeObserver, scale: float, zero: int, bits: int) -> float:
    """The same of one scale and zero point."""
    counts, edges = _without_zeros(observer)
    density = counts / np.diff(edges) / max(observer.counts.sum(), 1)
    return float(density @ np.diff(_integrated_error(edges, scale, -zero, 2**bits - 1 - zero)))


def _integrated_error(x: np.ndarray, scale: float, first: int, last: int) -> np.ndarray:
    """An antiderivative, at each x, of the squared distance to the nearest of the multiples first..last of scale.

    Within half a step of code n it is scale^3 (n / 12 + t^3 / 3) with t = x / scale - n; beyond the ends n stays at the
    end's code, so that t^3 / 3 grows into the clipping error.
    """
    steps = x / scale
    code = np.clip(np.rint(steps), first, last)
    integral: np.ndarray = scale**3 * (code / 12 + (steps - code) ** 3 / 3)
    return integral


def _divergences(observer: RangeObserver, lows: np.ndarray, highs: np.ndarray, bits: int) -> np.ndarray:
    """Kullback-Leibler divergence (n,) of the values clipped to each of n ranges from their quantized histogram.

    Ranges of fewer bins than levels would be copied exactly and are given no chance, except the whole range.
    """
    counts, edges = _without_zeros(observer)
    whole = (lows <= observer.low) & (highs >= observer.high)
    losses = np.full(len(lows), np.inf)
    for index in np.flatnonzero((highs - lows >= 2**bits * (edges[1] - edges[0])) | whole):
        losses[index] = _divergence(counts, edges, lows[index], highs[index], 2**bits)
    return losses


def _divergence(counts: np.ndarray, edges: np.ndarray, low: float, high: float, levels: int) -> float:
    """Of one range: the bins outside it are added to its end bins, the bins of one level share that level's counts."""
    start = max(int(np.searchsorted(edges, low, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(edges, high)), start + 1)
    inside = counts[start:stop].astype(np.float64)
    if inside.sum() < (1 - MOST_CLIPPED) * counts.sum():
        return np.inf
    clipped = inside.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[stop:].sum()
    centers = (edges[start:-1] + edges[start + 1 :])[: inside.size] / 2
    level = np.clip((centers - low) / (high - low or 1.0) * levels, 0, levels - 1).astype(np.int64)
    occupied = inside > 0
    sums = np.bincount(level, inside, levels)
    members = np.bincount(level, occupied, levels)
    quantized = np.where(occupied, (sums / np.maximum(members, 1))[level], 0.0)
    return _relative_entropy(clipped, quantized)


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) of two unnormalized histograms; an empty bin of q counts as 1e-4 values."""
    where = p > 0
    if not where.any():
        return 0.0
    q = np.maximum(q, 1e-4)
    p_share, q_share = p[where] / p.sum(), q[where] / q.sum()
    return float(p_share @ np.log(p_share / q_share))


def _without_zeros(observer: RangeObserver) -> tuple[np.ndarray, np.ndarray]:
    """The histogram less the values that are exactly 0, which every range represents."""
    counts, edges = observer.histogram()
    if observer.zeros:
        counts[np.searchsorted(edges, 0.0, side="right") - 1] -= observer.zeros
    return counts, edges
