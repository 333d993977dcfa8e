"""What libraries tell their loggers while ptqc works: warnings alone, so that an application's log stays its own."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# It tells of each pass that ptqc runs and each tensor that it writes.
CHATTY = logging.getLogger("onnx_ir")


class _Quiet:
    """The level while any thread works, and before."""

    def __init__(self) -> None:
        self.lock, self.working, self.before = threading.Lock(), 0, logging.NOTSET

    def begin(self) -> None:
        with self.lock:
            self.working += 1
            if self.working == 1:
                self.before = CHATTY.level
                CHATTY.setLevel(self.before or logging.WARNING)

    def end(self) -> None:
        with self.lock:
            self.working -= 1
            if not self.working:
                CHATTY.setLevel(self.before)


_QUIET = _Quiet()


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Nothing below a warning from libraries whose level the application has not set itself; also a decorator."""
    _QUIET.begin()
    try:
        yield
    finally:
        _QUIET.end()
