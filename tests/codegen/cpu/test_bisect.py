"""A library that differs from its ONNX file is found out afterwards, and the kernel is named."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from compiling import samples as given
from manifests import MANIFEST
from networks import FEEDS, residual

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.kernels.op_lowerings import codes, layers
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.codegen.program import verify
from ptqc.codegen.program.batching import Batching
from ptqc.errors import TargetError


def test_a_right_library_does_not_differ(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(artifact.folder)]) == 0
    printed = capsys.readouterr().out
    assert "no kernel differs from the ONNX file" in printed
    assert f"in 4 runs (lowest, highest, zero, random) of the library for {isa.named('host').name}" in printed


def test_samples_can_be_given(artifact: Artifact) -> None:
    result = ptqc.bisect(artifact.folder, data=given(3, 8, 8), samples=2)
    assert result.first is None
    assert result.runs == ["lowest", "highest", "zero", "random", "sample 0", "sample 31"]
    assert result.integers > 1000


def planted(folder: Path, file: Exported) -> Path:
    """An artifact of what a worker left in a folder."""
    out = folder / "out"
    (out / "cpu").mkdir(parents=True)
    (out / "model.onnx").write_bytes(file.data)
    for name in ("avx2.so", "weights.bin", "interface.json", "kernels.json"):
        shutil.copy(folder / name, out / "cpu" / name)
    files = [path for path in out.rglob("*") if path.is_file()]
    sums = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (out / "manifest.json").write_text(json.dumps({**MANIFEST, "files": sums, "targets": {"cpu": {}}}))
    return out


def test_the_first_of_two_faults_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, file = residual()
    write_job(tmp_path, made.lowered, file, FEEDS, Choices(Batching(2), "avx2"))
    right, numbers = layers.multiplier, codes.add_numbers
    monkeypatch.setattr(layers, "multiplier", lambda x, scale, y: right(x, scale, y) * 1.01)
    monkeypatch.setattr(codes, "add_numbers", lambda a, b, y: numbers(a, b, y) * np.array([1, 1.1, 1], np.float32))
    monkeypatch.setattr(verify, "compare", lambda *_: None)
    worker.build(tmp_path)
    out = planted(tmp_path, file)
    result = ptqc.bisect(out)
    assert result.first == result.order[2]  # behind the rounded input and its border
    assert len(result.wrong) > 2
    assert main(["bisect", str(out)]) == 70
    own = result.first.removesuffix("/codes")
    assert own != result.first
    text = capsys.readouterr().err
    assert f"the first kernel that differs makes {own} (dense): " in text
    assert "/codes" not in text
    different = result.to_json()["different"][0]
    assert (different["name"], different["value"]) == (own, result.first)


def test_without_a_library_there_is_nothing_to_compare(artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(artifact.folder, tmp_path / "out", ignore=shutil.ignore_patterns("cpu"))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["files"] = {name: sum_ for name, sum_ in manifest["files"].items() if not name.startswith("cpu/")}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TargetError, match="compile with --target cpu"):
        ptqc.bisect(tmp_path / "out")
