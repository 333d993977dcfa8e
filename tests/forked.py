"""Processes that run TVM, forked from one that has imported what they need: importing takes most of their time.

`python -P tests/forked.py KIND SOCKET` is that process, one of each kind for each process that tests. What it is asked
to run has the environment, working folder, limits and standard streams that it would have as a process of its own.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from ptqc.codegen.kernels import linking
from ptqc.errors import TargetError
from ptqc.utils import sandbox

MESSAGE = 1 << 20
# What runs the jobs of native builders.
JOB = "ptqc.codegen.kernels.process"
# Where the words of a sandboxed process's command name a module, behind the limits.
MODULE = 6
# What workers of a kind import. They themselves are left out: they are run, not imported.
IMPORTS = {
    "cpu": (
        "ptqc.codegen.cpu.package",
        "ptqc.codegen.cpu.tuning",
        "ptqc.codegen.kernels.package",
        "ptqc.codegen.kernels.lowering",
        "ptqc.codegen.program.timing",
        "ptqc.runtime.runtime",
    ),
    "cuda": ("ptqc.codegen.cuda.building",),
}
KINDS = {
    "ptqc.codegen.kernels.lowering:operators": "cpu",
    "ptqc.codegen.cpu.worker:build": "cpu",
    "ptqc.codegen.cpu.worker:time": "cpu",
    "ptqc.codegen.cuda.times:time": "cpu",
    "ptqc.codegen.cuda.building:build": "cuda",
    "ptqc.codegen.cuda.verification:compare": "cuda",
    # Scripts of tests.
    "emulated_networks": "cuda",
    "faulty_kernels": "cuda",
    "single_kernels": "cuda",
    "tuned_kernels": "cuda",
}
# What decides what is imported and how stand-ins for CUDA are built.
FIXED = ("PATH", "CXX", "LD_LIBRARY_PATH", "LD_PRELOAD")


class Forks:
    """Runs what `ptqc.utils.sandbox` would start."""

    def __init__(self) -> None:
        self._fixed = _fixed()
        self._lines: dict[str, socket.socket] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """End all processes."""
        for line in self._lines.values():
            line.close()
        for process in self._started:
            process.wait()

    def run(
        self, command: Sequence[str], seconds: float, folder: Path | None
    ) -> subprocess.CompletedProcess[str] | None:
        """The end of a sandboxed process; None where it has to be a process of its own.

        Raises subprocess.TimeoutExpired.
        """
        kind = KINDS.get(_program(command[MODULE:]))
        if kind is None or _fixed() != self._fixed:
            return None
        values = {
            "arguments": list(command[MODULE - 2 :]),
            "environment": dict(os.environ),
            "folder": str(folder or Path.cwd()),
            "path": sys.path,
            "processors": sorted(os.sched_getaffinity(0)),
        }
        with TemporaryFile("w+", errors="replace") as output, TemporaryFile("w+", errors="replace") as errors:
            code = self._ended(kind, values, [output.fileno(), errors.fileno()], seconds)
            output.seek(0)
            errors.seek(0)
            if code is None:
                raise subprocess.TimeoutExpired(list(command), seconds, output.read().encode())
            return subprocess.CompletedProcess(list(command), code, output.read(), errors.read())

    def _ended(self, kind: str, values: Mapping[str, object], streams: Sequence[int], seconds: float) -> int | None:
        """The exit code; None where time ran out."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with other:
                socket.send_fds(self._line(kind), [json.dumps(values).encode()], [other.fileno(), *streams])
            process = int(mine.recv(MESSAGE))
            mine.settimeout(seconds)
            try:
                return int(mine.recv(MESSAGE))
            except BaseException as error:
                os.kill(process, signal.SIGKILL)
                mine.settimeout(None)
                mine.recv(MESSAGE)  # it has ended
                if isinstance(error, TimeoutError):
                    return None
                raise

    def _line(self, kind: str) -> socket.socket:
        """To the process of a kind, which lives until this is closed."""
        if kind not in self._lines:
            mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                started = subprocess.Popen(
                    [sys.executable, "-P", __file__, kind, str(other.fileno())],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    pass_fds=[other.fileno()],
                    start_new_session=True,
                )
            self._lines[kind] = mine
            self._started.append(started)
        return self._lines[kind]


def _program(words: Sequence[str]) -> str:
    """What a sandboxed process runs in the end."""
    module, *arguments = words
    return arguments[-2] if module == JOB else module


def _fixed() -> tuple[object, ...]:
    """What must be as it was when the processes that fork were started."""
    return tuple(map(os.environ.get, FIXED))


def main(kind: str, descriptor: str) -> NoReturn:
    """Import, then fork for each program that is asked for."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # as `ptqc.codegen.kernels.process` does
    if kind == "cuda":
        _load_stand_ins()
    for name in IMPORTS[kind]:
        importlib.import_module(name)
    if kind == "cpu":
        _compile_threads()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(descriptor)) as requests:
        while True:
            sent, descriptors, _, _ = socket.recv_fds(requests, MESSAGE, 3)
            if not sent:  # what tests has ended
                os.killpg(0, signal.SIGKILL)
            if os.fork() == 0:
                break
            for passed in descriptors:
                os.close(passed)
    line, *streams = descriptors
    _fork(socket.socket(fileno=line))
    _become(json.loads(sent), streams)


def _load_stand_ins() -> None:
    """Load the stand-ins for CUDA once for all that are forked."""
    from ptqc.codegen.cuda.emulator import opening

    opening.load_stand_ins()
    opening.load_stand_ins = lambda: None


def _compile_threads() -> None:
    """Compile what all libraries for processors are linked with once for all that are forked."""
    from ptqc.codegen.cpu import package

    with contextlib.suppress(TargetError, OSError, subprocess.CalledProcessError):  # told by who needs it
        package._threads(linking.usual_compiler())


def _fork(line: socket.socket) -> None:
    """Fork once more, and tell who that is and how it ends. Returns in it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process:
        line.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        line.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    line.close()


def _become(values: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run what was asked for."""
    for place, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(stream, place)
    os.environ.clear()
    os.environ.update(values["environment"])
    os.chdir(values["folder"])
    sys.path[:] = values["path"]
    os.sched_setaffinity(0, values["processors"])
    try:
        sandbox.main(values["arguments"])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # at a usual end, libraries would wait for threads that a fork does not have


if __name__ == "__main__":
    main(*sys.argv[1:])
