"""An artifact in long use: many threads, many calls, many times opened; right, and without growth."""

import gc
import mmap
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import compiled, proto, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.utils.memory import give_back

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
THREADS, CALLS_PER_THREAD, CALLS, LOADS = 16, 10_000, 100_000, 1000
MOST_GROWTH = 1_000_000


@pytest.fixture(scope="module", params=["onnx", pytest.param("cpu", marks=pytest.mark.slow)])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An ONNX file alone, and one with a native library, which then runs."""
    model = proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1))
    target: dict[str, Any] = {}
    if request.param == "cpu":
        pytest.importorskip("tvm_ffi", reason="needs apache-tvm: pip install 'ptqc[tvm]'")
        target = {"target": "cpu"}
    return compiled(model, samples(8, count=8), tmp_path_factory.mktemp("artifact"), bits=(4,), **target)


def resident() -> int:
    """Bytes of memory in use now, without those that are free to be returned."""
    gc.collect()
    give_back(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(work: Callable[[], object], times: int) -> int:
    """Bytes that repeating a step costs, after as many repetitions as settle the allocator.

    Free memory of the allocator does not count: what it had returned to the system before, a step may use again.
    """
    for _ in range(times // 5):
        work()
    before = resident()
    for _ in range(times):
        work()
    return resident() - before


def differences(artifact: Artifact, threads: int, calls: int) -> int:
    """Calls from many threads whose outputs are not, to the bit, those of a single thread."""
    inputs = [samples(8, count=1 + i, seed=i) for i in range(7)]
    wanted = [artifact.run({"x": x})["y"] for x in inputs]

    def work(start: int) -> int:
        places = [(start + i) % len(inputs) for i in range(calls)]
        return sum(not np.array_equal(artifact.run({"x": inputs[i]})["y"], wanted[i]) for i in places)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))


def test_a_few_threads(artifact: Artifact) -> None:
    assert differences(artifact, 4, 50) == 0


@pytest.mark.slow
def test_many_threads(artifact: Artifact) -> None:
    assert differences(artifact, THREADS, CALLS_PER_THREAD) == 0


@pytest.mark.slow
def test_many_calls_need_no_more_memory(artifact: Artifact) -> None:
    x = samples(8, count=3)
    assert growth(lambda: artifact.run({"x": x}), CALLS) < MOST_GROWTH


@pytest.mark.slow
def test_an_artifact_that_is_closed_is_gone(artifact: Artifact) -> None:
    x = samples(8, count=3)
    assert growth(lambda: ptqc.load(artifact.folder).run({"x": x}), LOADS) < MOST_GROWTH


def test_a_leak_would_be_found() -> None:
    kept: list[mmap.mmap] = []

    def leak() -> None:
        page = mmap.mmap(-1, mmap.PAGESIZE)  # new to the process: no memory freed before can serve it
        page[0] = 1
        kept.append(page)

    assert growth(leak, 1000) > MOST_GROWTH


def test_a_difference_would_be_found(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = Artifact.run, iter(range(10**6))
    wrong = lambda self, feeds: {"y": right(self, feeds)["y"] + (next(calls) == 20)}  # noqa: E731
    monkeypatch.setattr(Artifact, "run", wrong)
    assert differences(artifact, 2, 20) == 1
