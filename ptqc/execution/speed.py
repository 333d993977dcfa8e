"""How much faster one model runs than another, with the spread of that figure.

All run in turns, on one thread, in an order drawn anew each time, and the processor's time is counted: it leaves out
what other programs took, though not what they did to the caches. So a round's figure is the ratio of the fastest
quarters of its runs, every round opens the models anew where that is quick (how fast a session is depends on where its
memory lies), and the median of all rounds is told with an interval that is built from their order alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

import numpy as np

from ptqc.execution.profile import Subject, undisturbed
from ptqc.utils.deadline import NEVER, Deadline
from ptqc.utils.stopwatch import processor_ns, seconds_of

SECONDS, LONGEST = 2.0, 3.0
# Twelve rounds leave one out at either end of the interval; with fewer than eleven, of slow models, it is their range.
ROUNDS, FEWEST_ROUNDS = 12, 6
CONFIDENCE = 0.98
# Runs in a row: the first finds the caches full of the other model.
TURN = 6

Run = Callable[[], object]
Opener = Callable[[], Run]
# Nanoseconds of one run.
Clock = Callable[[Run], float]


@dataclass(frozen=True)
class Speed:
    """Milliseconds per run on one thread, and the ratio (above 1: the second model is faster) with its interval."""

    float_ms: float
    compiled_ms: float
    ratio: float
    low: float
    high: float
    rounds: int


def compare(first: Subject, second: Subject, deadline: Deadline = NEVER) -> Speed | None:
    """How much faster the second model runs than the first, in about SECONDS; slow models take longer.

    None where there is no time for the fewest rounds.
    """
    openers = [partial(_opened, subject) for subject in (first, second)]
    times = race(openers, processor_ns, deadline)
    return None if times is None else speed_of(times[:, 0], times[:, 1])


def race(openers: Sequence[Opener], clock: Clock, deadline: Deadline = NEVER) -> np.ndarray | None:
    """Nanoseconds per run, (rounds, models), by a clock; None where there is no time for the fewest rounds."""
    times = np.array(list(_rounds(openers, clock, deadline)))
    return times if len(times) else None


def speed_of(first: np.ndarray, second: np.ndarray) -> Speed:
    """From nanoseconds of two models, round by round."""
    ratios = first / second
    return Speed(
        float(np.median(first)) / 1e6,
        float(np.median(second)) / 1e6,
        float(np.median(ratios)),
        *interval(ratios),
        len(ratios),
    )


def _opened(subject: Subject) -> Run:
    return partial(subject.session().run, subject.feeds)


def interval(found: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Two of the values that have the true median between them; with CONFIDENCE where there are enough values.

    P(the median is below the k-th smallest of n) is that of fewer than k heads in n throws (Conover 1999, section 3.2).
    """
    ordered, count = sorted(map(float, found)), len(found)
    left_out = 0
    while 2 * sum(comb(count, heads) for heads in range(left_out + 2)) <= (1 - CONFIDENCE) * 2**count:
        left_out += 1
    return ordered[left_out], ordered[count - 1 - left_out]


def _rounds(openers: Sequence[Opener], clock: Clock, deadline: Deadline) -> Iterator[list[float]]:
    """Nanoseconds per run of each model, round by round."""
    share, began, generator = SECONDS / ROUNDS, time.perf_counter(), np.random.default_rng(0)
    runs = list[Run]()
    opening = 0.0
    for done in range(ROUNDS):
        if done >= FEWEST_ROUNDS and time.perf_counter() - began > LONGEST:
            break
        started = time.perf_counter()
        if not runs or opening < share:
            runs.clear()  # one session of each at a time is enough
            runs += [opener() for opener in openers]
            opening = time.perf_counter() - started
            once = max(seconds_of(run) for run in runs)
            if not done and not deadline.leaves(FEWEST_ROUNDS * len(runs) * once):
                return
        turn = max(1, min(TURN, int(share / once / len(runs))))
        yield _round(runs, turn, started + share, generator, clock)


def _round(runs: Sequence[Run], turn: int, end: float, generator: np.random.Generator, clock: Clock) -> list[float]:
    """Nanoseconds per run of each model, undisturbed, from turns until a time on the performance counter."""
    times: list[list[float]] = [[] for _ in runs]
    while not times[0] or time.perf_counter() < end:
        for place in generator.permutation(len(runs)):
            times[place] += [clock(runs[place]) for _ in range(turn)]
    return [undisturbed(found) for found in times]
