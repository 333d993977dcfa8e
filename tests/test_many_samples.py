"""Memory does not grow with the number of samples: what they give is looked at and let go of, or waits in files."""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from compiling import proto, samples, weight

import ptqc

# Outputs of 73,728 bytes a sample.
MODEL = proto(
    """g (float[N,2,48,48] x) => (float[N,8,48,48] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1, b1)
        r = Relu(a)
        y = Conv<pads=[1,1,1,1]>(r, w2, b2)
    }""",
    w1=weight(8, 2, 3, 3),
    b1=np.full(8, 0.1, np.float32),
    w2=weight(8, 8, 3, 3, seed=1),
    b2=np.full(8, 0.1, np.float32),
)
SAMPLE = 8 * 48 * 48 * 4


class Alive:
    """Counts the bytes of arrays that sessions gave and that somebody holds."""

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.bytes, self.most, self._run, self._lock = 0, 0, run, Lock()

    def __call__(self, session: ort.InferenceSession, *arguments: Any) -> list[Any]:
        result = self._run(session, *arguments)
        for array in result:
            if isinstance(array, np.ndarray):
                self._add(array.nbytes)
                weakref.finalize(array, self._add, -array.nbytes).atexit = False
        return result

    def _add(self, more: int) -> None:
        with self._lock:
            self.bytes += more
            self.most = max(self.most, self.bytes)


def most_alive(count: int, budget: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes at a time in a compile with so many samples, whose outputs and walks have next to no memory."""
    with monkeypatch.context() as patched:
        alive = Alive(ort.InferenceSession.run)
        patched.setattr(ort.InferenceSession, "run", lambda *arguments: alive(*arguments))
        patched.setattr("ptqc.execution.tensors.OUTPUTS_MEMORY", 0)
        # With several processors, how many batches are worked on at the worst moment is up to the system.
        patched.setattr(os, "sched_getaffinity", lambda _process: {0}, raising=False)
        for module in ("ptqc.execution.walk", "ptqc.passes.reconstruct.reconstruct"):
            patched.setattr(f"{module}.WALK_MEMORY", 2 * SAMPLE)
        data = {"x": samples(2, 48, 48, count=count)}
        ptqc.compile(MODEL, calibration=data, output=folder / f"out{count}", budget=budget, cache=folder / f"c{count}")
    return alive.most


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["80%", "0.01relative"])
def test_memory_does_not_grow_with_samples(budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (most_alive(count, budget, tmp_path, monkeypatch) for count in (96, 192))
    assert few > 0
    # There are 24 more samples that are held back, and 72 more that are fitted to; a batch has 8 at most.
    assert many - few <= 8 * SAMPLE
