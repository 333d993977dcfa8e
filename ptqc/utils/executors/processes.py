"""Units solved in processes of this machine, each with one thread."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import ClassVar, Self

from ptqc.utils.executors.base import Message, Reply
from ptqc.utils.executors.remote import Remote, WorkerLost
from ptqc.utils.parallel import processors
from ptqc.utils.store import Store

# What libraries for products read when they are loaded.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Processes(Remote):
    """Python processes that are started when they are needed, and end with this one. workers: 0: one a processor."""

    name: ClassVar[str] = "processes"

    def __init__(self, store: Store, workers: int = 0) -> None:
        super().__init__(store)
        self._workers = workers or processors()
        self._lock, self._closed = Lock(), False
        self._idle, self._all = list[_Worker](), set[_Worker]()

    @classmethod
    def of(cls, store: Store, workers: int, address: str = "") -> Self:  # noqa: ARG003
        """Processes that read and write this store."""
        return cls(store, workers)

    @property
    def workers(self) -> int:
        """How many there are at most, if as many threads call."""
        return self._workers

    def ask(self, message: Message) -> Reply:
        """The answer of an idle worker, or of a new one."""
        with self._lock:
            if self._closed:
                raise WorkerLost("the compile ended")
            worker = self._idle.pop() if self._idle else _Worker()
            self._all.add(worker)
        try:
            reply = worker.ask(message)
        except WorkerLost:
            with self._lock:
                self._all.discard(worker)
            worker.end()
            raise
        with self._lock:
            self._idle.append(worker)
        return reply

    def close(self) -> None:
        """End all workers, also those at work."""
        with self._lock:
            self._closed = True
            ended, self._all, self._idle = self._all, set(), []
        for worker in ended:
            worker.end()
        super().close()


class _Worker:
    """One process; `python -m ptqc.utils.executors.process` says what it does."""

    def __init__(self) -> None:
        # What lies in the working folder is imported only where this process would.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ptqc.utils.executors.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def ask(self, message: Message) -> Reply:
        """Send a message and wait. Raises WorkerLost where the process ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message.to_json()).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):  # ended, or closed meanwhile
            line = b""
        if not line.endswith(b"\n"):
            raise WorkerLost(f"its process ended ({_ending(self._process.wait())})")
        return Reply.of(json.loads(line))

    def end(self) -> None:
        """Kill the process, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not read by the process
                    pipe.close()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
