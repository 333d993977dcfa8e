"""How long something takes."""

import time
from collections.abc import Callable


def seconds_of(run: Callable[[], object]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
