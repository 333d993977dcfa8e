"""Peak memory of this process."""

import resource
import sys
from pathlib import Path


def peak_memory_mb() -> float:
    """Largest resident size so far, in MiB.

    Linux's own counter is read where there is one: getrusage carries the parent's peak over into a new process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
