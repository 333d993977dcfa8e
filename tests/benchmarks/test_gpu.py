"""The benchmark for GPUs: its network is what it says, and a prepared folder runs in the emulator on its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gpu
import gpu_network
import numpy as np
import onnxruntime as ort
import pytest

SMALL = ((8, 1), (16, 2))


def test_the_network_is_resnet_50() -> None:
    result = list(gpu_network.blocks())
    assert len(result) * 3 + sum(block.stride > 1 for block in result) + 1 + 1 == 53  # and the fully connected one
    assert [block.inputs for block in result[:4]] == [64, 256, 256, 256]
    assert result[3].stride == 2


def test_the_network_runs() -> None:
    data = gpu_network.onnx_model(SMALL, size=32, classes=5).SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)})
    assert y.shape == (2, 5)
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"what": "a", "found": "0 of 3 integers differ"}, "| a | 0 of 3 integers differ |"),
        ({"what": "a", "microseconds": None}, "| a | not timed |"),
        ({"what": "a", "microseconds": 12.34, "of_cublaslt": 0.912}, "| a | 12.3 µs; 0.91 of cublaslt |"),
    ],
)
def test_a_row_is_told(row: dict[str, object], line: str) -> None:
    assert gpu._line(row) == line


@pytest.mark.slow
def test_a_prepared_folder_runs_in_the_emulator(tmp_path: Path) -> None:
    pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")
    from ptqc.codegen.cuda.emulator import building
    from ptqc.codegen.cuda.toolkit import Toolkit

    if refusal := building.refusal() or ("" if Toolkit.find() else "nvcc is not installed: pip install 'ptqc[cuda]'"):
        pytest.skip(refusal)
    folder, out = tmp_path / "gpu", tmp_path / "out.json"
    assert gpu.main(["prepare", str(folder), "--sides", "64", "--tiles", "2"]) == 0
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(folder / "gpu.py"), "run", str(folder), "--dry-run", "--out", str(out)]

    def ends(*more: str) -> int:
        """The exit code of a run, whose output goes on where the last one ended."""
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, env=bare, cwd=tmp_path, timeout=600
        )
        assert not done.stderr
        return done.returncode

    out.write_text(json.dumps({"device": "the emulator", "parts": {"bandwidth": []}}))
    assert ends("--minutes", "0") == gpu.LEFT
    assert ends() == 0
    results = json.loads(out.read_text())
    assert list(results["parts"]) == ["bandwidth", "layers by warpgroups", "torch", "ONNX Runtime", "products"]
    written = out.stat().st_mtime_ns
    assert ends() == 0
    assert out.stat().st_mtime_ns == written
    (layers,), behind = results["parts"]["layers by warpgroups"], results["parts"]["products"]
    assert layers["what"] == "layers by warpgroups: kernel by kernel"
    assert re.match(r"0 of \d{2},\d{3} integers differ", layers["found"])
    grouped = [f"int8, wgmma m64n{columns}k32," for columns in (64, 128)]
    names = [f"{kind} 64 × 64 × 64" for kind in ("int8", *grouped, "int8, 2:4,", "FP8")]
    others = [row for row in behind if "of_the_predicted_tiles" in row]
    assert [row["what"].partition(",")[0] for row in others] == ["the same"]
    rows = [row for row in behind if row not in others]
    assert rows == [{"what": what, "microseconds": None, "of_cublaslt": None} for what in names]
