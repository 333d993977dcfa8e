"""Compiles in processes of their own that are killed at random times, and what they leave."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from compiling import QUICK, digests, proto, samples, weight
from problems import command_of, environment, gone, marked

from ptqc.errors import InternalError

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"


@dataclass
class Killable:
    """One command, started anew until it was not killed.

    executor: its options. more: of its environment. patience: seconds in which its processes have to be gone.
    """

    folder: Path
    executor: Sequence[str] = ("--executor", "processes", "--workers", "2")
    more: dict[str, str] = field(default_factory=dict)
    patience: float = 20
    mark: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self.folder.mkdir()
        # Short enough for the names of sockets.
        self.temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), self.folder / "m.onnx")
        np.save(self.folder / "x.npy", samples(8, count=8))

    def start(self) -> subprocess.Popen[str]:
        """Run it from the beginning, or from where it was killed."""
        options = ["--calibration", "x.npy", "--bits", "3,4", "--cache", "cache", "--quiet", "--force", "-o", "out"]
        return subprocess.Popen(
            [sys.executable, "-c", QUICK, "compile", "m.onnx", *options, *self.executor],
            cwd=self.folder,
            env={**environment(self.mark), "TMPDIR": str(self.temporary), **self.more},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, running: subprocess.Popen[str]) -> tuple[dict[str, str], list[str]]:
        """Digests of what it delivers, and the entries of its store; nothing else is left of it."""
        said = running.communicate()[1]
        assert said == ""
        assert running.returncode == 0
        assert gone(marked(self.mark), self.patience)
        # ONNX Runtime keeps a file there whose name begins with a dot.
        assert [path.name for path in self.temporary.iterdir() if not path.name.startswith(".")] == []
        shutil.rmtree(self.temporary)
        assert {path.name for path in self.folder.iterdir()} == {"m.onnx", "x.npy", "cache", "out"}
        return digests(self.folder / "out"), sorted(path.name for path in (self.folder / "cache").iterdir())


@dataclass(frozen=True)
class Usual:
    """What a compile that nobody kills delivers, its store, and the seconds that it takes."""

    found: tuple[dict[str, str], list[str]]
    seconds: float

    @classmethod
    def of(cls, compile_: Killable) -> "Usual":
        """Compile once."""
        began = time.monotonic()
        return cls(compile_.finish(compile_.start()), time.monotonic() - began)


def check_killed(one: Killable, usual: Usual, seed: int, victims: Callable[[int, list[int]], list[int]]) -> None:
    """Kill a compile, or some of its processes, at a random time; in the end it delivers what is usual.

    Where there is none of these yet, they are killed as soon as there is. A compile that cannot go on without them
    ends, and is run again; Ray ends it by itself where the head of its cluster is gone.
    victims: gets the process of the compile, and those of it and all that it started.
    """
    running = one.start()
    time.sleep(random.Random(seed).uniform(0.2, 1.2) * usual.seconds)
    killed = list[int]()
    while not killed and running.poll() is None:
        killed = victims(running.pid, marked(one.mark))
    for process in killed:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if running.wait() != 0:
        problem = running.communicate()[1]
        assert running.returncode != InternalError.exit_code, problem
        assert gone(marked(one.mark), one.patience)
        running = one.start()
    (files, entries), (usual_files, usual_entries) = one.finish(running), usual.found
    assert files == usual_files
    assert entries == usual_entries


def driver(compile_: int, started: list[int]) -> list[int]:
    """The compile itself."""
    del started
    return [compile_]


def first_worker(compile_: int, started: list[int]) -> list[int]:
    """A process that its executor started."""
    del compile_
    return [process for process in started if "ptqc.utils.executors.process" in command_of(process)][:1]
