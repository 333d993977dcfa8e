"""Memory: the peak of this process, and what there is to be had."""

import os
import resource
import sys
from pathlib import Path

# Of control groups, version 2 and 1.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


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


def available_bytes() -> int:
    """Memory that a new process can have: what the system calls available, within the limit of a container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    system = Path("/proc/meminfo")
    if system.exists():
        lines = (line.split() for line in system.read_text().splitlines())
        found += [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    for place in CONTAINER_LIMITS:
        text = place.read_text().strip() if place.exists() else ""
        found += [int(text)] if text.isdigit() else []
    return min(found)
