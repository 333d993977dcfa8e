"""Two compiles at the same time into one store, and half of them into one output, with equal bytes in each.

Both end well, or the second one into the same output is told to wait.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import QUICK, digests, proto, samples, weight

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
PAIRS = 20
WELL = ("", 0)


def start(folder: Path, output: str, *more: str) -> subprocess.Popen[str]:
    arguments = ["compile", "m.onnx", "--calibration", "x.npy", "--bits", "3,4", "--cache", "cache", "--quiet"]
    command = [sys.executable, "-c", QUICK, *arguments, "-o", output, "--force", *more]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, cwd=folder, env=paths, stderr=subprocess.PIPE, text=True)


def pair(folder: Path, *outputs: str, more: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Digests of the outputs of two compiles that ran at the same time."""
    folder.mkdir(parents=True)
    onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), folder / "m.onnx")
    np.save(folder / "x.npy", samples(8, count=8))
    processes = [start(folder, outputs[0]), start(folder, outputs[1], *more)]
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    refused = [(text, code) for text, code in ends if (text, code) != WELL]
    assert len(refused) <= (outputs[0] == outputs[1])
    assert all(code == 2 and "another compile is writing" in text for text, code in refused)
    left = {path.name for path in folder.iterdir()}
    assert left == {"m.onnx", "x.npy", "cache", *outputs}
    assert [path for path in (folder / "cache").iterdir() if path.name.startswith(".")] == []
    return [digests(folder / output) for output in outputs]


@pytest.mark.slow
def test_pairs_of_compiles(tmp_path: Path) -> None:
    result = []
    for number in range(PAIRS):
        outputs = ("out", "out") if number % 2 else ("one", "two")
        result += pair(tmp_path / str(number), *outputs)
    assert all(one == result[0] for one in result)


@pytest.mark.slow
def test_a_difference_would_be_found(tmp_path: Path) -> None:
    one, two = pair(tmp_path / "pair", "one", "two", more=("--seed", "1"))
    assert one != two
