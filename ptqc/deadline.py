"""How long a compile may take: what improves the result is left out when there is no time for it."""

import math
import re
import time
from dataclasses import dataclass

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

    def leaves(self, seconds: float) -> bool:
        """Whether what takes `seconds` would still be done in time."""
        return time.monotonic() + seconds <= self.end


def parse_seconds(text: str) -> float:
    """Seconds of "90", "90s", "5m", "1.5h". Raises UsageError naming the text and the known forms."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|min|h|)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"time limit {text!r} is not understood; give a positive duration: 90s, 5m or 1.5h")
    return float(match[1]) * SECONDS[match[2]]
