"""Arrays held in fewer bytes while they wait for the nodes behind them."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import numpy as np

from ptqc.formats import QuantParams
from ptqc.ir.integer_arithmetic import quantize
from ptqc.utils import store

STEPS = 32767
# From this magnitude on, a step times STEPS may be beyond float32.
LARGEST = 2.0**127
# Steps below this are fine enough even beside the values of a mask: an exponential takes little notice.
COARSEST = 1 / 64
# As shares of the largest magnitude: an array is masked where all values are below OWN, its own ones, or above FAR,
# those of the mask; an ordinary array has some between.
OWN, FAR = 1 / 32, 1 / 4
# Steps that the smallest number has at least, where small numbers count as much as large ones; and that the largest of
# each channel has in any case.
FINE_STEPS = 64
SMALLEST_SCALE = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True, eq=False)
class Compressed:
    """A float32 array as codes: real = scale · (code − zero_point). np.asarray gives it back.

    scale: one number, or an array that has the channels along one axis.
    """

    codes: np.ndarray
    scale: float | np.ndarray
    zero_point: int = 0

    @classmethod
    def of(cls, array: np.ndarray, params: QuantParams | None = None, fine: bool = False) -> "Compressed | np.ndarray":
        """The array in its own 8-bit codes where it is quantized, else rounded to 16 bits of its largest magnitude.

        Where these are too coarse for some channel, to 16 bits of the largest magnitude of each channel, on the last
        axis or on axis 1. Anything but float32 arrays, what is not finite, and vectors (they may be factors) are kept
        as they are. So are masked arrays, since 16 bits of the mask's value would leave nothing of the rest, and those
        whose channels have no axis of their own. fine: small numbers count as much as large ones, and the array is kept
        as it is where 16 bits are too few for its smallest.
        """
        if not isinstance(array, np.ndarray):
            return array
        if params is not None:
            return cls(np.asarray(quantize(array, params)), params.scale, params.zero_point)
        if array.dtype != np.float32 or array.ndim < 2:
            return array
        magnitude = np.maximum(array.max(0, initial=0.0), -array.min(0, initial=0.0))
        reach = float(magnitude.max(initial=0.0))
        if not reach < LARGEST or is_masked(array, reach) or (fine and is_wide(array, reach)):
            return array
        if (scale := _scale(magnitude, reach)) is None:
            return array
        steps = np.asarray(array / np.asarray(scale, np.float32))
        return cls(np.rint(steps, out=steps).astype(np.int16), scale)

    def with_codes(self, change: Callable[[np.ndarray, int], np.ndarray]) -> "Compressed | np.ndarray":
        """The same of what moves values and pads them with zeros. change: of an array, and of what stands for zero.

        Where each channel has a scale, the result has scales of its own.
        """
        if isinstance(self.scale, np.ndarray):
            return Compressed.of(change(np.asarray(self), 0))
        return Compressed(change(self.codes, self.zero_point), self.scale, self.zero_point)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The real values, float32, always made anew."""
        real = self.codes.astype(np.float32)
        if self.zero_point:
            real -= np.float32(self.zero_point)
        real *= np.asarray(self.scale, np.float32)
        return np.asarray(real, dtype)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the real values."""
        return np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.codes.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.codes.ndim

    @property
    def nbytes(self) -> int:
        """Number of bytes held."""
        return self.codes.nbytes + (self.scale.nbytes if isinstance(self.scale, np.ndarray) else 0)


def _scale(magnitude: np.ndarray, reach: float) -> float | np.ndarray | None:
    """The step of 16 bits, or one for each channel, as float32 of the array's rank; None where neither is fine enough.

    A step is fine enough where the largest magnitude of every channel has FINE_STEPS of it, as far as it is not 0.
    magnitude: the largest along the first axis, which is left out. reach: the largest of all.
    """
    whole = max(float(np.float32(reach / STEPS)), SMALLEST_SCALE)
    if not magnitude.size:
        return whole
    magnitude = magnitude[None]
    axes = dict.fromkeys((magnitude.ndim - 1, 1))
    reaches = {a: magnitude.max(tuple(b for b in range(magnitude.ndim) if b != a), keepdims=True) for a in axes}
    if all(_is_fine(each, whole) for each in reaches.values()):
        return whole
    for axis in axes:
        scale = np.maximum(np.float32(reaches[axis] / np.float32(STEPS)), np.float32(SMALLEST_SCALE))
        usual = float(np.sqrt(np.square(scale, dtype=np.float64).mean()))
        if all(_is_fine(each, usual) for other, each in reaches.items() if other != axis):
            return np.asarray(scale)
    return None


def _is_fine(reaches: np.ndarray, step: float) -> bool:
    """Whether each magnitude has FINE_STEPS, but for 0 and what is hardly more."""
    return float(reaches.min(initial=np.inf, where=reaches > FINE_STEPS * SMALLEST_SCALE)) >= FINE_STEPS * step


def largest(array: np.ndarray) -> float:
    """The largest magnitude, found without a copy."""
    return max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))


def is_masked(array: np.ndarray, reach: float) -> bool:
    """Whether values of a mask, such as the lowest of float32, stand far from all others. reach: largest magnitude."""
    if reach <= COARSEST * STEPS:
        return False
    magnitude = np.abs(array)
    own = magnitude < OWN * reach
    return bool((own | (magnitude > FAR * reach)).all() and magnitude.any(where=own))


def is_wide(array: np.ndarray, reach: float) -> bool:
    """Whether the smallest number that is not 0 has fewer than FINE_STEPS of 16 bits."""
    magnitude = np.abs(array)
    return float(magnitude.min(initial=np.inf, where=magnitude > 0)) * STEPS < FINE_STEPS * reach


Held = np.ndarray | Compressed


def real(value: Held) -> np.ndarray:
    """The array itself; sequences, which some operators give, as they are."""
    return np.asarray(value) if isinstance(value, Compressed) else value


# Values held in memory up to a number of bytes; those beyond it wait in files until they are read.

# Arrays of fewer bytes are not worth a file.
SMALL = 2**16
# Bytes in memory of the values of a walk, or of all walks that go on beside each other.
WALK_MEMORY = 3 * 2**28
# Bytes in memory of the outputs, or inputs, of many samples.
OUTPUTS_MEMORY = 2**27


class Bounded:
    """Keeps account of the values that it was shown, as long as they are held by anybody. most: bytes in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._counted = set[int]()  # identities of arrays that are held
        self._lock = RLock()  # a value may be let go of while another one is counted

    def keep(self, value: Held) -> Held:
        """The same numbers, from a file where there is no room for them. Sequences stay as they are."""
        if isinstance(value, Compressed):
            return replace(value, codes=self.array(value.codes))
        return self.array(value) if isinstance(value, np.ndarray) else value

    def outputs(self, runs: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """The arrays of many runs by name, each run let go of before the next one."""
        return [{name: self.array(x) if isinstance(x, np.ndarray) else x for name, x in run.items()} for run in runs]

    def array(self, array: np.ndarray) -> np.ndarray:
        """The same of an array; only one whose numbers lie without gaps goes to a file, in the order that they have."""
        owner = _owner(array)
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        in_order = array.transpose(axes)
        is_in_file = isinstance(owner, np.memmap)
        if is_in_file or array.dtype.hasobject or array.nbytes < SMALL or not in_order.flags.c_contiguous:
            return array
        with self._lock:
            if id(owner) in self._counted:
                return array
            if has_room := self.held + owner.nbytes <= self.most:
                self.held += owner.nbytes
                self._counted.add(id(owner))
                weakref.finalize(owner, self._let_go, id(owner), owner.nbytes).atexit = False
        # With the same strides, as products round by them.
        return array if has_room else np.ndarray(array.shape, array.dtype, store.spool(in_order), strides=array.strides)

    def _let_go(self, owner: int, size: int) -> None:
        with self._lock:
            self._counted.remove(owner)
            self.held -= size


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose numbers another one shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def outputs_in_files(runs: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Inputs or outputs of many samples, by name; beyond OUTPUTS_MEMORY in files."""
    return Bounded(OUTPUTS_MEMORY).outputs(runs)


# Activations that wait in files, in 16 bits, for the part of the graph that reads them.
#
# float16 has 11 significant bits at every size, so that a few values far larger than all others, which residual streams
# have, cost the others nothing, unlike steps of one width (`Compressed`).

# The largest magnitude of an array becomes a number of so many binary digits; what is 2⁻²⁹ of it keeps all 11 of its.
REACH_BITS = 15


@dataclass(frozen=True, eq=False)
class Waiting:
    """real = codes · 2^exponent, of float16 codes; exponent is None where the values are kept as they are."""

    codes: np.ndarray
    exponent: int | None = None

    @classmethod
    def of(cls, array: np.ndarray) -> "Waiting":
        """The array from where it waits. Other types than float32, masks and what is not finite keep their values."""
        if not isinstance(array, np.ndarray):  # a sequence
            return cls(array)
        reach = largest(array) if array.dtype == np.float32 else np.nan
        if not 0 < reach < LARGEST or is_masked(array, reach):
            return cls(_spool(array))
        exponent = int(np.frexp(reach)[1]) - REACH_BITS
        return cls(_spool(np.ldexp(array, -exponent).astype(np.float16)), exponent)

    @property
    def real(self) -> np.ndarray:
        """The real values."""
        if self.exponent is None:
            return self.codes
        return np.asarray(np.ldexp(self.codes.astype(np.float32), self.exponent))


def _spool(array: np.ndarray) -> np.ndarray:
    return array if array.nbytes < SMALL or array.dtype.hasobject else store.spool(array)
