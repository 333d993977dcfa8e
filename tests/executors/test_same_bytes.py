"""A compile delivers the same bytes wherever its weights are solved, and however often it is killed on the way."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, digests, product, proto, residual, samples, weight
from problems import environment, gone, marked

import ptqc
from ptqc.errors import UsageError

NETWORKS: Mapping[str, tuple[onnx.ModelProto, np.ndarray]] = {
    "product": (product(), samples(16)),
    "residual": (residual(), samples(3, 8, 8)),
}
WAYS = ("threads 1", "threads 2", "processes 1", "processes 2")
# The command, which compares speeds for a moment only.
QUICK = "from ptqc.execute import speed; speed.SECONDS = 0.02; from ptqc.cli import run; run()"
GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"


def artifact_of(network: str, way: str, folder: Path) -> tuple[dict[str, str], set[str]]:
    """Digests of the files of an artifact, and the entries of the store. way: the executor and its workers."""
    executor, workers = way.split()
    model, data = NETWORKS[network]
    artifact = compiled(model, data, folder, bits=(2, 4, 7), executor=executor, workers=int(workers))
    return digests(artifact.folder), {path.name for path in (folder / "cache").iterdir()}


@pytest.fixture(scope="module")
def of_product(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], set[str]]:
    return artifact_of("product", WAYS[0], tmp_path_factory.mktemp("product"))


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_product(tmp_path: Path, way: str, of_product: tuple[dict[str, str], set[str]]) -> None:
    assert artifact_of("product", way, tmp_path) == of_product


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way == WAYS[-1] else pytest.mark.slow) for way in WAYS[1:]]
)
def test_a_residual_network(tmp_path: Path, way: str) -> None:
    expected = artifact_of("residual", WAYS[0], tmp_path / "expected")
    assert artifact_of("residual", way, tmp_path / "found") == expected


def test_an_unknown_executor_is_refused_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown executor dask; known: threads, processes"):
        ptqc.compile("none.onnx", calibration=None, output=tmp_path / "out", executor="dask")


class Compile:
    """One command, started anew until it was not killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, str(uuid.uuid4())
        folder.mkdir()
        onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), folder / "m.onnx")
        np.save(folder / "x.npy", samples(8, count=8))

    def start(self, executor: str = "processes", workers: int = 2) -> subprocess.Popen[str]:
        options = ["--calibration", "x.npy", "--bits", "3,4", "--cache", "cache", "--quiet", "--force", "-o", "out"]
        command = [sys.executable, "-c", QUICK, "compile", "m.onnx", *options]
        command += ["--executor", executor, "--workers", str(workers)]
        return subprocess.Popen(command, cwd=self.folder, env=environment(self.mark), stderr=subprocess.PIPE, text=True)

    def finish(self, running: subprocess.Popen[str]) -> dict[str, str]:
        """Digests of what it delivers; nothing is left of it."""
        assert (running.communicate()[1], running.returncode) == ("", 0)
        assert gone(marked(self.mark))
        assert {path.name for path in self.folder.iterdir()} == {"m.onnx", "x.npy", "cache", "out"}
        assert [path.name for path in (self.folder / "cache").iterdir() if path.name.startswith(".")] == []
        return digests(self.folder / "out")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float, list[str]]:
    """What a compile that nobody kills delivers, the seconds that it takes, and the entries of its store."""
    one, began = Compile(tmp_path_factory.mktemp("usual") / "one"), time.monotonic()
    found = one.finish(one.start("threads"))
    return found, time.monotonic() - began, sorted(path.name for path in (one.folder / "cache").iterdir())


def check_killed(folder: Path, usual: tuple[dict[str, str], float, list[str]], seed: int, *, worker: bool) -> None:
    """Kill a compile, or one of its workers, at a random time; then let it run to its end."""
    expected, seconds, entries = usual
    one, generator = Compile(folder), random.Random(seed)
    running = one.start()
    time.sleep(generator.uniform(0.2, 1.2) * seconds)
    started = marked(one.mark)
    workers = [pid for pid in started if pid != running.pid]
    for pid in workers[:1] if worker else [running.pid]:
        os.kill(pid, signal.SIGKILL)
    if not worker:
        running.communicate()
        assert gone(started)
        running = one.start()
    assert one.finish(running) == expected
    assert sorted(path.name for path in (folder / "cache").iterdir()) == entries


def test_a_killed_compile_resumes(tmp_path: Path, usual: tuple[dict[str, str], float, list[str]]) -> None:
    check_killed(tmp_path / "killed", usual, 0, worker=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("worker", [False, True], ids=["driver", "worker"])
def test_compiles_killed_at_random(
    tmp_path: Path, usual: tuple[dict[str, str], float, list[str]], worker: bool, seed: int
) -> None:
    check_killed(tmp_path / "killed", usual, seed + 1, worker=worker)
