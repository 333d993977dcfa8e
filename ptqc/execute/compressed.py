"""Arrays held in fewer bytes while they wait for the nodes behind them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptqc.formats import QuantParams
from ptqc.integer import quantize

STEPS = 32767
# From this magnitude on, a step times STEPS may be beyond float32.
LARGEST = 2.0**127
# Steps below this are fine enough even beside the values of a mask: an exponential takes little notice.
COARSEST = 1 / 64
# As shares of the largest magnitude: an array is masked where all values are below OWN, its own ones, or above FAR,
# those of the mask; an ordinary array has some between.
OWN, FAR = 1 / 32, 1 / 4
# Steps that the smallest number has at least, where small numbers count as much as large ones.
FINE_STEPS = 64
SMALLEST_SCALE = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True, eq=False)
class Compressed:
    """A float32 array as codes: real = scale · (code − zero_point). np.asarray gives it back."""

    codes: np.ndarray
    scale: float
    zero_point: int = 0

    @classmethod
    def of(cls, array: np.ndarray, params: QuantParams | None = None, fine: bool = False) -> "Compressed | np.ndarray":
        """The array in its own 8-bit codes where it is quantized, else rounded to 16 bits of its largest magnitude.

        Anything but float32 arrays, what is not finite, and vectors (they may be factors) are kept as they are. So are
        masked arrays: 16 bits of the mask's value would leave nothing of the rest. fine: small numbers count as much
        as large ones, and the array is kept as it is where 16 bits are too few for its smallest.
        """
        if not isinstance(array, np.ndarray):
            return array
        if params is not None:
            return cls(np.asarray(quantize(array, params)), params.scale, params.zero_point)
        reach = largest(array) if array.dtype == np.float32 and array.ndim > 1 else np.nan
        if not reach < LARGEST or is_masked(array, reach) or (fine and is_wide(array, reach)):
            return array
        scale = max(float(np.float32(reach / STEPS)), SMALLEST_SCALE)
        steps = np.asarray(array / np.float32(scale))
        return cls(np.rint(steps, out=steps).astype(np.int16), scale)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The real values, float32, always made anew."""
        real = self.codes.astype(np.float32)
        if self.zero_point:
            real -= np.float32(self.zero_point)
        real *= np.float32(self.scale)
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
        return self.codes.nbytes


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
