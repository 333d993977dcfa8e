"""The search for paths through a bitshift trellis, compiled by Numba when this is imported.

A state is its last step behind the memory of the steps before: state = memory · 2^bits + step. The next memory is what
a state has left without its oldest bits. Steps of even and of odd outputs may differ in bits. NumPy needs 10 to 100
times as long (measured), since each output waits for the one before.

A path bites its tail. Of all 2^(8 − bits) memories in which it may begin, that one is taken which a free path over
the seam passes: outputs far from the seam have no say in that.
"""

import numpy as np

from ptqc.formats.trellis_steps import STATES, compiled, writable

# Bits of a path on each side of the seam that say in which state it begins; a shorter sequence is repeated.
SEAM = 80
FAR = np.float32(1e30)


@compiled("void(f4[::1], f4[::1], f4[::1], f4[::1], f4[:, ::1], i8[::1], i8, i8, i8, u1[:, ::1], u1[::1])")
def _path(
    ratio: np.ndarray,
    weights: np.ndarray,
    table: np.ndarray,
    square: np.ndarray,
    scratch: np.ndarray,
    step_bits: np.ndarray,
    start: int,
    length: int,
    memory: int | np.int64,
    back: np.ndarray,
    states: np.ndarray,
) -> None:
    """Put the states of the best path over so many outputs from a start into `states`.

    step_bits (2,): of the steps to outputs at even and at odd places. memory: in which it begins and ends; −1:
    anywhere. scratch (3, STATES), back (length, memories): of any values.
    """
    size = len(ratio)
    costs, totals, oldest = scratch[0], scratch[1], scratch[2]
    bits = step_bits[start & 1]
    memories = STATES >> bits
    for m in range(memories):
        totals[m] = 0 if memory < 0 or memory == m else FAR
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


@compiled("void(f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[:, ::1], i8[::1], i8, u1[:, ::1], u1[::1], f4[:, ::1])")
def _paths(
    ratio: np.ndarray,
    weights: np.ndarray,
    table: np.ndarray,
    square: np.ndarray,
    scratch: np.ndarray,
    step_bits: np.ndarray,
    seam: int,
    back: np.ndarray,
    states: np.ndarray,
    result: np.ndarray,
) -> None:
    """Put the codes of the best path of each sequence into `result`. seam: outputs on each side of it."""
    count, size = ratio.shape
    start = -seam % size
    for i in range(count):
        _path(ratio[i], weights[i], table, square, scratch, step_bits, start, 2 * seam, -1, back, states)
        memory = np.int64(states[seam - 1]) & ((STATES >> step_bits[0]) - 1)
        _path(ratio[i], weights[i], table, square, scratch, step_bits, 0, size, memory, back, states)
        for t in range(size):
            result[i, t] = table[states[t]]


def codes(ratio: np.ndarray, weights: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray:
    """The code (n, R) of each state on the paths of least Σ weights · (ratio − code)², one for each sequence.

    ratio, weights: (n, R) float32. table: (256,) float32, codes of the states. bits: of the steps to outputs at even
    and at odd places; of the first as many or more.
    """
    seam = 2 * SEAM // sum(bits)
    length = max(ratio.shape[1], 2 * seam)
    # NumPy's work is done here, as Numba takes long to compile it.
    back, states = np.empty((length, STATES >> min(bits)), np.uint8), np.empty(length, np.uint8)
    scratch, result = np.empty((3, STATES), np.float32), np.empty(ratio.shape, np.float32)
    ratio, weights = writable(ratio, np.float32), writable(weights, np.float32)
    _paths(ratio, weights, table, table * table, scratch, np.array(bits), seam, back, states, result)
    return result
