"""Memory: the peak of this process, and what there is to be had."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

STATUS = Path("/proc/self/status")
# What cannot be dropped: all but pages of mapped files.
HELD = ("RssAnon:", "RssShmem:")
# What the process itself is linked to, the allocator among it.
LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None
# Seconds between two looks.
EVERY = 0.05
# MiB of the whole process from which on the allocator has to return what is free, between layers.
MOST_MB = 1280
# Of control groups, version 2 and 1.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# How ONNX Runtime and protobuf say that there is no more memory.
NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Failed to map memory")


def lacks_memory(error: Exception) -> bool:
    """Whether an error of whatever library says that there is no more memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


def peak_memory_mb() -> float:
    """Largest resident size so far, in MiB.

    Linux's own counter is read where there is one: getrusage carries the parent's peak over into a new process.
    """
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class MemoryPeak:
    """The most memory that this process held at any look; pages of mapped files, which can be dropped, do not count.

    Where the system does not tell them apart, the largest resident size so far.
    """

    def __init__(self) -> None:
        self._most = 0.0

    def look(self) -> None:
        """Take what is held now into account."""
        held = held_mb()
        self._most = max(self._most, peak_memory_mb() if held is None else held)

    @property
    def mb(self) -> float:
        """In MiB."""
        self.look()
        return self._most


def give_back(above_mb: float = MOST_MB) -> bool:
    """Let the allocator return free memory to the system, if this process holds more than so many MiB; whether it did.

    glibc keeps what lies free between arrays that are held, in an arena for each of several threads: after the layers
    of a network, more than they hold. Other allocators have no such call, and are left alone.
    """
    held, trim = held_mb(), getattr(LIBRARY, "malloc_trim", None)
    return trim is not None and held is not None and held > above_mb and bool(trim(0))


@contextmanager
def watched_memory() -> Iterator[MemoryPeak]:
    """Look at this process's memory every EVERY seconds."""
    peak, ended = MemoryPeak(), Event()

    def watch() -> None:
        while not ended.wait(EVERY):
            peak.look()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def held_mb() -> float | None:
    """Memory of this process but for pages of mapped files, in MiB; None where the system does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    result = [int(line.split()[1]) for line in lines if line.startswith(HELD)]
    return sum(result) / 1024 if result else None


def available_bytes() -> int:
    """Memory that a new process can have: what the system calls available, within the limit of a container."""
    result = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    system = Path("/proc/meminfo")
    if system.exists():
        lines = (line.split() for line in system.read_text().splitlines())
        result += [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    for place in CONTAINER_LIMITS:
        text = place.read_text().strip() if place.exists() else ""
        result += [int(text)] if text.isdigit() else []
    return min(result)
