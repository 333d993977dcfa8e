"""How long a compile may take, and how its steps keep to that: what improves the result shrinks or is left out."""

import math
import re
import threading
import time
from dataclasses import dataclass, field

from ptqc.errors import UsageError

SECONDS = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Deadline:
    """end: on the monotonic clock."""

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float, started: float) -> "Deadline":
        """`seconds` behind `started`; 0: never."""
        return cls(started + seconds if seconds else math.inf)

    @property
    def is_limited(self) -> bool:
        """Whether there is an end."""
        return math.isfinite(self.end)

    @property
    def left(self) -> float:
        """Seconds until the end, at least 0."""
        return max(self.end - time.monotonic(), 0.0)

    def leaves(self, seconds: float) -> bool:
        """Whether what takes `seconds` would still be done in time."""
        return time.monotonic() + seconds <= self.end

    def share(self, part: float) -> "Deadline":
        """The deadline of a step that may take this part of what is left."""
        return Deadline(time.monotonic() + part * self.left) if self.is_limited else self

    def affords(self, seconds: float, most: int, least: int = 1) -> int:
        """How many things of `seconds` each there is time for, from `least` to `most`; without a limit all."""
        if not self.is_limited:
            return most
        return min(most, max(least, int(self.left / max(seconds, 1e-9))))


NEVER = Deadline()


@dataclass
class Pace:
    """How much of each piece of a step is done so that the step is at its end in time.

    Pieces are of known relative cost, and what has been done says how many seconds one unit of it takes. The first one
    is left out of that as soon as it is a small part of what was done, since it also loads what all of them need.

    total: cost of all pieces. seconds: that one unit takes, which is believed until one is done. is_short: whether
    there ever was time for a part only.
    """

    deadline: Deadline
    total: float
    seconds: float | None = None
    is_short: bool = False
    _began: float = field(default_factory=lambda: time.monotonic())
    _passed: float = 0.0  # cost of the pieces that are done, in full or in part
    _done: float = 0.0  # of what was really done
    _first: tuple[float, float] | None = None  # when the first piece ended, and what was done of it
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def part(self) -> float:
        """How much of the next pieces there is time for: 1 is all, 0 none."""
        if not self.deadline.is_limited:
            return 1.0
        with self._lock:
            needed = self._each() * max(self.total - self._passed, 0.0)
            part = min(1.0, self.deadline.left / needed) if needed else float(self.deadline.left > 0)
            self.is_short |= part < 1
            return part

    @property
    def whole(self) -> float:
        """Seconds that all pieces take, as far as is known."""
        with self._lock:
            return self._each() * self.total

    def _each(self) -> float:
        if self.seconds is not None and self._done < 1:
            return self.seconds
        ended, first = self._first or (self._began, 0.0)
        since, done = (ended, self._done - first) if self._done > 2 * first else (self._began, self._done)
        return (time.monotonic() - since) / done if done else 0.0

    def did(self, cost: float, part: float = 1.0) -> None:
        """A piece of this cost is behind, of which this part was done."""
        with self._lock:
            self._passed += cost
            self._done += cost * part
            if self._first is None and self._done:
                self._first = time.monotonic(), self._done


def parse_seconds(text: str) -> float:
    """Seconds of "90", "90s", "5m", "1.5h". Raises UsageError naming the text and the known forms."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|min|h|)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"time limit {text!r} is not understood; give a positive duration: 90s, 5m or 1.5h")
    return float(match[1]) * SECONDS[match[2]]
