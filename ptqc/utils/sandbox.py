"""Work in a process of its own with limits on memory and time: a crash or a hang there is an answer, not the end.

`python -m ptqc.utils.sandbox BYTES SECONDS MODULE ARGUMENT…` is that process. It gets paths, and answers in files or
lines.
"""

import contextlib
import ctypes
import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ptqc.utils.memory import available_bytes
from ptqc.utils.parallel import processors

LEAST_MEMORY = 4 * 2**30
# Address space, not memory, that the C library sets aside for each thread.
PER_THREAD = 2**27
OUT_OF_MEMORY = 77
PR_SET_PDEATHSIG = 1
LAST_LINES = 5


@dataclass(frozen=True)
class Ended:
    """How a sandboxed process ended. problem: what stopped it, in words, or None. said: its last line.

    code: its exit code, or minus the number of the signal that ended it; None where it ran out of time.
    errors: all that it wrote to stderr.
    """

    problem: str | None
    said: str
    code: int | None = 0
    errors: str = ""


def run(module: str, arguments: Sequence[str], seconds: float, mapped: int = 0, folder: Path | None = None) -> Ended:
    """Run `python -m module` under limits.

    seconds: on the clock. mapped: bytes of files that it maps, which cost address space but no memory. folder: that it
    works in; None: this one.
    """
    room = max(LEAST_MEMORY, available_bytes()) + processors() * PER_THREAD + mapped
    # What lies in the working folder is imported only where this process would.
    command = [sys.executable, "-P", "-m", __name__, str(room), str(round(seconds)), module, *arguments]
    try:
        done = _done(command, seconds, folder)
    except subprocess.TimeoutExpired as error:
        return Ended(f"did not finish within {seconds:.0f} s", _last(error.stdout or b"", 1), None)
    return Ended(_problem(done, room), _last(done.stdout, 1), done.returncode, done.stderr)


def _done(command: Sequence[str], seconds: float, folder: Path | None) -> subprocess.CompletedProcess[str]:
    """The end of a process that imports from where this one does. Raises subprocess.TimeoutExpired."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=paths, capture_output=True, text=True, timeout=seconds, check=False, errors="replace", cwd=folder
    )


def _problem(done: subprocess.CompletedProcess[str], room: int) -> str | None:
    if done.returncode == 0:
        return None
    last = _last(done.stderr, LAST_LINES)
    message = f": {last}" if last else ""
    if done.returncode == OUT_OF_MEMORY:
        return f"needs more memory than the {room / 1e9:.1f} GB that there are"
    if done.returncode == -signal.SIGKILL:
        return "was killed by the system (SIGKILL), as it does when memory runs out"
    if done.returncode < 0:
        return f"crashed ({signal.Signals(-done.returncode).name}){message}"
    return f"failed (exit code {done.returncode}){message}"


def _last(text: str | bytes, count: int) -> str:
    """The last lines, joined; what a process that ran out of time said comes as bytes."""
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    return " | ".join(text.strip().splitlines()[-count:])


def _limit(memory: int, seconds: int) -> None:
    """Bound this process; without a parent that counts the time, it ends."""
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds * processors() + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        with contextlib.suppress(OSError, ValueError):  # macOS has limits that cannot be set
            resource.setrlimit(kind, (value, most))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """The sandboxed process."""
    memory, seconds, module, *rest = arguments
    _limit(int(memory), int(seconds))
    sys.argv = [module, *rest]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # nothing that needs memory any more


if __name__ == "__main__":
    main(sys.argv[1:])
