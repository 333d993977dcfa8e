"""Ctrl-C and SIGTERM: one exception in the main thread, and an end within seconds whatever that is busy with."""

import os
import signal
import sys
import threading
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds for what is under way to be cleaned up. A library may be at work for longer without letting Python in.
GRACE = 4.0
MESSAGE = "ptqc: interrupted; what was measured is kept, run the same command again"


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end. exit_code: 128 and its number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def listen() -> None:
    """From now on a signal raises Stopped once; further ones are ignored, so that cleaning up is left alone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for what a shell runs in the background
            signal.signal(number, _stop)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(reader,), daemon=True).start()


def ignore() -> None:
    """From now on signals change nothing: what is left to do takes no time."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, _frame: FrameType | None) -> None:
    ignore()
    raise Stopped(number)


def _end_in_time(reader: int) -> None:
    (number,) = os.read(reader, 1)
    time.sleep(GRACE)
    print(MESSAGE, file=sys.stderr, flush=True)
    os._exit(128 + number)
