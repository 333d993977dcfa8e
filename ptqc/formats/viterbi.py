"""The search for paths through a bitshift trellis, compiled by Numba when this is imported.

A state is its last step behind the memory of the steps before: state = memory · 2^bits + step. The next memory is what
a state has left without its oldest bits. Steps of even and of odd outputs may differ in bits. NumPy needs 10 to 100
times as long (measured), since each output waits for the one before.

A path bites its tail. Of all 2^(8 − bits) memories in which it may begin, that one is taken which a free path over
the seam passes: outputs far from the seam have no say in that.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np

STATES = 256
# Bits of a path on each side of the seam that say in which state it begins; a shorter sequence is repeated.
SEAM = 80
FAR = np.float32(1e30)
F = TypeVar("F", bound=Callable[..., object])


def _compiled(signature: str) -> Callable[[F], F]:
    """Compile a function at once, so that no deadline pays for it. signature: as Numba writes it."""

    def compiled(function: F) -> F:
        return cast(F, numba.njit(signature, nogil=True)(function))

    return compiled


@_compiled("void(f4[::1], f4[::1], f4[::1], f4[::1], i8[::1], i8, i8, i8, u1[:, ::1], u1[::1])")
def _path(
    ratio: np.ndarray,
    weights: np.ndarray,
    table: np.ndarray,
    square: np.ndarray,
    step_bits: np.ndarray,
    start: int,
    length: int,
    memory: int | np.int64,
    back: np.ndarray,
    states: np.ndarray,
) -> None:
    """Put the states of the best path over so many outputs from a start into `states`.

    step_bits (2,): of the steps to outputs at even and at odd places. memory: in which it begins and ends; −1:
    anywhere. back (length, memories): scratch.
    """
    size = len(ratio)
    costs, totals, oldest = np.empty(STATES, np.float32), np.empty(STATES, np.float32), np.empty(STATES, np.float32)
    bits = step_bits[start & 1]
    memories = STATES >> bits
    totals[:] = 0 if memory < 0 else FAR
    if memory >= 0:
        totals[memory] = 0
    for t in range(length):
        place = (start + t) % size
        weight = weights[place]
        slope = np.float32(-2) * ratio[place] * weight
        branches = 1 << bits
        for m in range(memories):
            total = totals[m]
            for s in range(m * branches, (m + 1) * branches, 2):
                costs[s] = total
                costs[s + 1] = total
        for s in range(STATES):
            costs[s] += weight * square[s] + slope * table[s]
        bits = step_bits[(place + 1) % size & 1]
        memories = STATES >> bits
        if t == length - 1:
            break
        # Of the states that leave one memory the cheapest: by halves, so that processors compare many at a time.
        half = STATES >> 1
        for s in range(half):
            is_less = costs[half + s] < costs[s]
            oldest[s] = np.float32(half) if is_less else np.float32(0)
            costs[s] = costs[half + s] if is_less else costs[s]
        while half > memories:
            half >>= 1
            for s in range(half):
                is_less = costs[half + s] < costs[s]
                oldest[s] = oldest[half + s] + np.float32(half) if is_less else oldest[s]
                costs[s] = costs[half + s] if is_less else costs[s]
        least = costs[0]
        for m in range(memories):
            least = costs[m] if costs[m] < least else least
        for m in range(memories):
            totals[m] = costs[m] - least
            back[t, m] = np.uint8(np.int32(oldest[m]) >> (8 - bits))
    best: int | np.int64 = 0 if memory < 0 else memory
    for s in range(best, STATES, 1 if memory < 0 else memories):
        if costs[s] < costs[best]:
            best = s
    states[length - 1] = best
    for t in range(length - 2, -1, -1):
        bits = step_bits[(start + t + 1) % size & 1]
        before = best >> bits
        best = back[t, before] * (STATES >> bits) + before
        states[t] = best


@_compiled("f4[:, ::1](f4[:, ::1], f4[:, ::1], f4[::1], i8[::1])")
def _paths(ratio: np.ndarray, weights: np.ndarray, table: np.ndarray, step_bits: np.ndarray) -> np.ndarray:
    count, size = ratio.shape
    square = table * table
    result = np.empty_like(ratio)
    seam = 2 * SEAM // step_bits.sum()
    back = np.empty((max(size, 2 * seam), STATES >> step_bits.min()), np.uint8)
    states = np.empty(max(size, 2 * seam), np.uint8)
    start = -seam % size
    for i in range(count):
        _path(ratio[i], weights[i], table, square, step_bits, start, 2 * seam, -1, back, states)
        memory = np.int64(states[seam - 1]) & ((STATES >> step_bits[0]) - 1)
        _path(ratio[i], weights[i], table, square, step_bits, 0, size, memory, back, states)
        for t in range(size):
            result[i, t] = table[states[t]]
    return result


@_compiled("Tuple((u1[:, ::1], b1))(i1[:, ::1], i8[::1], i8[::1], i8[::1])")
def _steps(columns: np.ndarray, order: np.ndarray, first: np.ndarray, step_bits: np.ndarray) -> tuple[np.ndarray, bool]:
    """order: states by their code; first[c + 128]: where those of code c begin in it."""
    count, size = columns.shape
    memories = STATES >> step_bits[0]
    result = np.empty((count, size), np.uint8)
    # Bit b of reached[t, m]: whether a path from memory b is in memory m before output t; it begins in one of 64.
    reached = np.zeros((size + 1, STATES >> step_bits.min()), np.uint64)
    for i in range(count):
        for m in range(memories):
            reached[0, m] = np.uint64(1) << np.uint64(m)
        for t in range(size):
            reached[t + 1] = 0
            bits, following = step_bits[t & 1], step_bits[(t + 1) % size & 1]
            code = columns[i, t] + 128
            for place in range(first[code], first[code + 1]):
                state = order[place]
                reached[t + 1, state & ((STATES >> following) - 1)] |= reached[t, state >> bits]
        begin = -1
        for m in range(memories):
            if (reached[size, m] >> np.uint64(m)) & np.uint64(1):
                begin = m
                break
        if begin < 0:
            return result, False
        memory = begin
        for t in range(size - 1, -1, -1):
            bits, following = step_bits[t & 1], step_bits[(t + 1) % size & 1]
            code = columns[i, t] + 128
            for place in range(first[code], first[code + 1]):
                state = order[place]
                is_next = (state & ((STATES >> following) - 1)) == memory
                if is_next and (reached[t, state >> bits] >> np.uint64(begin)) & np.uint64(1):
                    result[i, t] = state & ((1 << bits) - 1)
                    memory = state >> bits
                    break
    return result, True


def codes(ratio: np.ndarray, weights: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray:
    """The code (n, R) of each state on the paths of least Σ weights · (ratio − code)², one for each sequence.

    ratio, weights: (n, R) float32. table: (256,) float32, codes of the states. bits: of the steps to outputs at even
    and at odd places; of the first as many or more.
    """
    return _paths(_own(ratio, np.float32), _own(weights, np.float32), table, np.array(bits))


def steps(columns: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray | None:
    """The steps (n, R) uint8 of closed paths whose states stand for these codes (n, R); None where one has no path."""
    order = np.argsort(table, kind="stable")
    first = np.searchsorted(table[order], np.arange(-128, 129)).astype(np.int64)
    result, is_path = _steps(_own(columns, np.int8), order, first, np.array(bits))
    return result if is_path else None


def _own(values: np.ndarray, dtype: type) -> np.ndarray:
    """An array as the compiled functions take it, which know none that is read-only."""
    return np.require(values, dtype, ("C", "W"))
