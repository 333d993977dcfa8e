"""What this machine is, and what its processors can do."""

import ctypes
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from ptqc.errors import TargetError
from ptqc.utils.parallel import processors

# arch_prctl(2): a process asks the system once before it may use the tile registers of AMX.
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def machine() -> str:
    """The kind of this machine, by the name that Linux gives it."""
    result = platform.machine().lower()
    return MACHINES.get(result, result)


@cache
def processor_features() -> frozenset[str]:
    """Instruction sets that every processor has and that the system supports, by the system's names."""
    try:
        sets = [frozenset(value.split()) for value in _cpuinfo("flags", "Features")]
    except OSError as error:
        raise TargetError(f"cannot find out what this processor can do: {error}") from error
    return frozenset.intersection(*sets) if sets else frozenset()


@cache
def processor_name() -> str:
    """What the processor calls itself; empty where the system does not tell."""
    with suppress(OSError):
        return next(iter(_cpuinfo("model name", "CPU part")), "")
    return ""


def _cpuinfo(*names: str) -> list[str]:
    """What the system says under these names, of every processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":") for line in lines]
    return [value.strip() for name, _, value in named if name.strip() in names]


def load_average() -> float:
    """How many programs wanted a processor of this machine, on average over the last minute."""
    return os.getloadavg()[0]


def busy(load: float) -> str:
    """Say that a machine with this load average was busy; empty where each program had a processor."""
    if load <= processors():
        return ""
    return f"the machine was busy, a load of {load:.1f} on {processors()} processors"


@cache
def refused_tiles() -> str | None:
    """Ask the system for the AMX tile registers: without its permission their first use kills the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))) == 0:
        return None
    return f"the system does not let this process use AMX: {os.strerror(ctypes.get_errno())}"
