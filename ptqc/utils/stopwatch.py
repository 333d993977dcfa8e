"""How long something takes."""

import time
from collections.abc import Callable


def seconds_of(run: Callable[[], object]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def processor_ns(run: Callable[[], object]) -> float:
    """Nanoseconds that the processor spends on one run in this thread: what other programs take is left out."""
    started = time.thread_time_ns()
    run()
    return float(time.thread_time_ns() - started)


def wall_ns(run: Callable[[], object]) -> float:
    """Nanoseconds that pass during one run, of all its threads: what other programs take counts, too."""
    return 1e9 * seconds_of(run)
