"""A library runs on arrays and tensors, with and without CUDA graphs, from several threads: on the stand-ins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from cpp_example import build_example

from ptqc.artifact.folder import Artifact
from ptqc.codegen.cuda.emulator import building
from ptqc.codegen.cuda.emulator.opening import image_of, read_ptx
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.errors import TargetError, UsageError
from ptqc.runtime import cuda

ABSENT = building.refusal() or ("" if Toolkit.find() else "nvcc is not installed: pip install 'ptqc[cuda]'")
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)


@pytest.mark.long
def test_a_library_runs_in_all_ways(artifact: Artifact, tmp_path: Path) -> None:
    script = Path(__file__).parent / "running.py"
    command = [sys.executable, str(script), str(artifact.folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    for seed, outputs in enumerate(result.pop("wanted")):
        x = np.random.default_rng(seed).standard_normal((2, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(outputs, next(iter(artifact.run({"x": x}).values())), rtol=1e-5, atol=1e-5)
    assert result.pop("tvm") is False
    record = result.pop("too_large_a_batch")
    assert record.startswith("cuda:0 has no memory left for a run of 5000 samples: give fewer samples at a time")
    assert {name: is_right for name, is_right in result.items() if not is_right} == {}


def test_without_a_gpu_it_is_told(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER", "libcuda.so.of.nobody")
    with pytest.raises(TargetError, match="needs a GPU with NVIDIA's driver"):
        artifact.run({"x": np.zeros((1, 3, 8, 8), np.float32)}, device="cuda")


def test_graphs_are_of_gpus(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match="graph is of libraries for GPUs: give a device"):
        artifact.native(graph=True)  # type: ignore[call-overload]


@pytest.mark.slow
def test_the_example_runs_without_python(artifact: Artifact, tmp_path: Path) -> None:
    folder = artifact.folder / "cuda"
    stand_ins = building.build_stand_ins(tmp_path)
    (tmp_path / "kernels.fatbin").write_bytes(image_of(folder / "cuda.so"))
    building.build_kernels(read_ptx(folder), tmp_path / "kernels.so")
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(str, stand_ins)),
        "PTQC_EMULATED_KERNELS": str(tmp_path),
    }
    command = [str(build_example(tmp_path)), str(folder / "cuda.so"), "2x3x8x8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    shape, _, printed = done.stdout.strip().partition(":")
    assert shape == "output 0 [2, 10]"
    x = (np.arange(2 * 3 * 8 * 8, dtype=np.float32) % 7 - 3).reshape(2, 3, 8, 8)
    (wanted,) = artifact.run({"x": x}).values()
    np.testing.assert_allclose(np.array(printed.split(), np.float32), wanted.reshape(-1)[:8], rtol=1e-5, atol=1e-5)
