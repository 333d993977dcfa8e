"""The steps of paths through a bitshift trellis, from the codes of their states; compiled by Numba when imported.

Apart from `ptqc.formats.viterbi`, which takes several times as long to compile: packing needs no search for the best
path.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

STATES = 256
F = TypeVar("F", bound=Callable[..., object])


def compiled(signature: str) -> Callable[[F], F]:
    """Compile a function at once, so that no deadline pays for it. signature: as Numba writes it.

    Numba keeps the machine code beside the module, or in the user's folder for caches, for the next process.
    """

    def compile_it(function: F) -> F:
        try:
            return cast(F, numba.njit(signature, nogil=True, cache=True)(function))
        except Exception:  # there is no such folder, it is full, or a file in it is damaged
            return cast(F, numba.njit(signature, nogil=True)(function))

    return compile_it


def inlined(function: F) -> F:
    """Make a function a part of the compiled ones that call it, with no code of its own."""
    return cast(F, numba.njit(nogil=True, inline="always")(function))


@compiled("b1(i1[:, ::1], i8[::1], i8[::1], i8[::1], u8[:, ::1], u1[:, ::1])")
def _steps(
    columns: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
    step_bits: np.ndarray,
    reached: np.ndarray,
    result: np.ndarray,
) -> bool:
    """Put the steps of all paths into `result`; whether there are such paths.

    order: states by their code; first[c + 128]: where those of code c begin in it. reached (R + 1, memories): scratch.
    """
    count, size = columns.shape
    memories, one = STATES >> step_bits[0], np.uint64(1)
    for i in range(count):
        # Bit b of reached[t, m]: whether a path from memory b is in memory m before output t; it begins in one of 64.
        for m in range(memories):
            reached[0, m] = one << np.uint64(m)
        for t in range(size):
            bits, following = step_bits[t & 1], step_bits[(t + 1) % size & 1]
            code = columns[i, t] + 128
            for m in range(STATES >> following):
                reached[t + 1, m] = 0
            for place in range(first[code], first[code + 1]):
                state = order[place]
                reached[t + 1, state & ((STATES >> following) - 1)] |= reached[t, state >> bits]
        memory = 0
        while memory < memories and not (reached[size, memory] >> np.uint64(memory)) & one:
            memory += 1
        if memory == memories:
            return False
        begin = np.uint64(memory)
        for t in range(size - 1, -1, -1):
            bits, following = step_bits[t & 1], step_bits[(t + 1) % size & 1]
            code = columns[i, t] + 128
            for place in range(first[code], first[code + 1]):
                state = order[place]
                is_next = (state & ((STATES >> following) - 1)) == memory
                if is_next and (reached[t, state >> bits] >> begin) & one:
                    result[i, t] = state & ((1 << bits) - 1)
                    memory = state >> bits
                    break
    return True


def steps(columns: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray | None:
    """The steps (n, R) uint8 of closed paths whose states stand for these codes (n, R); None where one has no path."""
    order = np.argsort(table, kind="stable")
    first = np.searchsorted(table[order], np.arange(-128, 129)).astype(np.int64)
    # NumPy's work is done here, as Numba takes long to compile it.
    reached = np.empty((columns.shape[1] + 1, STATES >> min(bits)), np.uint64)
    result = np.empty(columns.shape, np.uint8)
    is_path = _steps(writable(columns, np.int8), order, first, np.array(bits), reached, result)
    return result if is_path else None


def writable(values: np.ndarray, dtype: type) -> np.ndarray:
    """A copy where an array is read-only or not contiguous, which the compiled functions do not take."""
    return np.require(values, dtype, ("C", "W"))
