"""Activations that wait in files, in 16 bits, for the part of the graph that reads them.

float16 has 11 significant bits at every size, so that a few values far larger than all others, which residual streams
have, cost the others nothing, unlike steps of one width (`ptqc.execution.compressed`).
"""

from dataclasses import dataclass

import numpy as np

from ptqc.execution.compressed import LARGEST, is_masked, largest
from ptqc.utils.store import spool

# The largest magnitude of an array becomes a number of so many binary digits; what is 2⁻²⁹ of it keeps all 11 of its.
REACH_BITS = 15
# Arrays of fewer bytes stay in memory.
SMALL = 2**16


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
            return cls(_kept(array))
        exponent = int(np.frexp(reach)[1]) - REACH_BITS
        return cls(_kept(np.ldexp(array, -exponent).astype(np.float16)), exponent)

    @property
    def real(self) -> np.ndarray:
        """The real values."""
        if self.exponent is None:
            return self.codes
        return np.asarray(np.ldexp(self.codes.astype(np.float32), self.exponent))


def _kept(array: np.ndarray) -> np.ndarray:
    return array if array.nbytes < SMALL or array.dtype.hasobject else spool.kept(array)
