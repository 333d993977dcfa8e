"""The search for paths through a bitshift trellis, compiled by Numba when this is imported.

A state is its last step behind the memory of the steps before: state = memory · 2^bits + step. The next memory is what
a state has left without its oldest bits. Steps of even and of odd outputs may differ in bits. NumPy needs 10 to 100
times as long (measured), since each output waits for the one before.

A path bites its tail. Of all 2^(8 − bits) memories in which it may begin, that one is taken which a free path over
the seam passes: outputs far from the seam have no say in that.
"""

import numpy as np

from ptqc.formats.trellis_steps import STATES, compiled, inlined, writable

# Bits of a path on each side of the seam that say in which state it begins; a shorter sequence is repeated.
SEAM = 80
FAR = np.float32(1e30)


@inlined
def _path(
    ratio: np.ndarray,
    weights: np.ndarray,
    table: np.ndarray,
    square: np.ndarray,
    scratch: np.ndarray,
    step_bits: np.ndarray,
    seam: int,
    back: np.ndarray,
    states: np.ndarray,
) -> None:
    """Put the states of the best closed path of one sequence into `states`.

    step_bits (2,): of the steps to outputs at even and at odd places. seam: outputs on each side of it. scratch (3,
    STATES), back (outputs, memories): of any values.
    """
    size = len(ratio)
    costs, totals, oldest = scratch[0], scratch[1], scratch[2]
    # First over the seam, from any memory; then all outputs, from and to the memory that this path has at the seam.
    start, length, memory = -seam % size, 2 * seam, np.int64(-1)
    for _ in range(2):
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
        memory = np.int64(states[seam - 1]) & ((STATES >> step_bits[0]) - 1)
        start, length = 0, size


@compiled(
    "void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, :, ::1], b1,"
    " f4[::1], f4[::1], f4[::1], f4[:, ::1], i8[::1], i8, u1[:, ::1], u1[::1])"
)
def _columns(
    values: np.ndarray,
    codes: np.ndarray,
    costs: np.ndarray,
    coupling: np.ndarray,
    descends: bool,
    ratio: np.ndarray,
    table: np.ndarray,
    square: np.ndarray,
    scratch: np.ndarray,
    step_bits: np.ndarray,
    seam: int,
    back: np.ndarray,
    states: np.ndarray,
) -> None:
    """Round columns one after the other; see `rounded_in_turn`. All that is by column is (d, groups · R).

    coupling: of no columns where nothing is passed on. ratio: scratch.
    """
    size, groups = len(ratio), len(coupling)
    rows = size // groups
    for j in range(len(values)):
        for i in range(size):
            ratio[i] = values[j, i] + codes[j, i]
        _path(ratio, costs[j], table, square, scratch, step_bits, seam, back, states)
        gain = np.float32(0)
        for i in range(size):
            before, after = codes[j, i] - ratio[i], table[states[i]] - ratio[i]
            gain += costs[j, i] * (before * before - after * after)
        if descends and gain <= 0:  # the best path is not sure to be found
            values[j] = 0
            continue
        for i in range(size):
            code = table[states[i]]
            values[j, i] = code - (codes[j, i] if descends else ratio[i])
            codes[j, i] = code
        for g in range(groups):
            for k in range(j + 1, coupling.shape[1]):
                for i in range(g * rows, (g + 1) * rows):
                    values[k, i] += coupling[g, j, k] * values[j, i]


def codes(ratio: np.ndarray, weights: np.ndarray, table: np.ndarray, bits: tuple[int, int]) -> np.ndarray:
    """The code (n, R) of each state on the paths of least Σ weights · (ratio − code)², one for each sequence.

    ratio, weights: (n, R) float32. table: (256,) float32, codes of the states. bits: of the steps to outputs at even
    and at odd places; of the first as many or more.
    """
    return rounded_in_turn(ratio, None, weights, np.empty((1, 0, 0), np.float32), table, bits)[0]


def rounded_in_turn(
    values: np.ndarray,
    codes: np.ndarray | None,
    costs: np.ndarray,
    coupling: np.ndarray,
    table: np.ndarray,
    bits: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Round columns one after the other, each passing on to those behind it by how much it was moved.

    values (d, groups · R): weights / scale (GPTQ); with codes, how far each code is from its best (coordinate descent).
    costs (d, groups · R): of a squared error. coupling (groups, d, d): what a unit of a column's move adds to the
    values of later ones. table and bits: as of `codes`. Returns the codes and the moves: what every code is more than
    its value, or than it was.
    """
    moves = np.array(values, np.float32, order="C")
    result = np.zeros_like(moves) if codes is None else np.array(codes, np.float32, order="C")
    size, seam = moves.shape[1], 2 * SEAM // sum(bits)
    length = max(size, 2 * seam)
    # NumPy's work is done here, as Numba takes long to compile it.
    back, states = np.empty((length, STATES >> min(bits)), np.uint8), np.empty(length, np.uint8)
    scratch, ratio = np.empty((3, STATES), np.float32), np.empty(size, np.float32)
    costs, coupling = writable(costs, np.float32), writable(coupling, np.float32)
    _columns(
        moves, result, costs, coupling, codes is not None,
        ratio, table, table * table, scratch, np.array(bits), seam, back, states,
    )  # fmt: skip
    return result, moves
