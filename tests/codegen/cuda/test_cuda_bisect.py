"""A CUDA library is compared afterwards: in the emulator, where there is no GPU."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cuda target needs Apache TVM")

from compiling import quick

import ptqc
from ptqc.artifact import bisect
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.codegen.cuda import verification
from ptqc.codegen.cuda.emulator import building
from ptqc.codegen.cuda.emulator.opening import image_of, read_ptx
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.program.emulated import Emulated
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.verify import Values
from ptqc.errors import TargetError, VerificationError
from ptqc.runtime import cuda

ABSENT = building.refusal() or ("" if Toolkit.find() else "nvcc is not installed: pip install 'ptqc[cuda]'")
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER", "libcuda.so.of.nobody")


def with_ptx(artifact: Artifact, folder: Path, old: str, new: str) -> Path:
    """A copy whose PTX was changed, and with it what the manifest says of the file."""
    out = folder / "changed"
    shutil.copytree(artifact.folder, out)
    path = out / "cuda" / "kernels.ptx.gz"
    ptx = read_ptx(out / "cuda")
    assert old in ptx
    path.write_bytes(gzip.compress(ptx.replace(old, new).encode()))
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"]["cuda/kernels.ptx.gz"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


@pytest.mark.slow
def test_a_right_library_does_not_differ(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(artifact.folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no kernel differs from the ONNX file" in printed
    assert "(lowest, highest, zero, random, sample 0, sample 1) of the library for cuda, in the emulator" in printed
    assert "the CUDA library gives the recorded outputs on 2 golden samples" in printed


@pytest.mark.long
def test_the_first_kernel_that_differs_is_named(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = with_ptx(artifact, tmp_path, "cvt.rni.f32.f32", "cvt.rmi.f32.f32")
    assert main(["bisect", str(out)]) == 70
    text = capsys.readouterr().err
    assert "the first kernel that differs makes" in text
    assert "(input: " in text


@pytest.fixture
def both(artifact: Artifact, tmp_path: Path) -> Artifact:
    """The same network with a CPU library beside the CUDA library."""
    cache = artifact.folder.parent / "cache"
    with quick():
        other = ptqc.resolve(
            artifact.folder, output=tmp_path / "cpu", plan=artifact.plan, target="cpu", cpu="portable", cache=cache
        )
    shutil.copytree(artifact.folder, tmp_path / "both")
    shutil.copytree(other.folder / "cpu", tmp_path / "both" / "cpu")
    manifest = json.loads((tmp_path / "both" / "manifest.json").read_text())
    for part in ("targets", "files"):
        manifest[part] = {**other.manifest[part], **manifest[part]}
    (tmp_path / "both" / "manifest.json").write_text(json.dumps(manifest))
    return ptqc.load(tmp_path / "both")


@pytest.mark.slow
def test_a_library_for_processors_beside_it_is_compared_too(both: Artifact, tmp_path: Path) -> None:
    result = ptqc.bisect(both.folder)
    assert result.first is None
    of_processors, of_gpus = result.libraries
    assert of_gpus == "cuda, in the emulator of PTX" != of_processors
    assert result.runs == ["lowest", "highest", "zero", "random"]
    compared = ptqc.verify(both.folder).checks["library"]
    assert "the native library gives the recorded outputs" in compared
    assert "the CUDA library gives the recorded outputs" in compared
    changed = ptqc.bisect(with_ptx(both, tmp_path, "cvt.rni.f32.f32", "cvt.rmi.f32.f32"))
    assert changed.first is not None
    assert changed.integers == result.integers


@pytest.mark.long
def test_ptx_that_the_machine_code_was_not_made_of_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    out = with_ptx(artifact, tmp_path, ".address_size 64", ".address_size 64\n// changed")
    with pytest.raises(VerificationError, match="is not what the manifest says"):
        ptqc.verify(out)


def test_where_neither_a_gpu_nor_an_emulator_is_it_is_told(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TargetError, match="needs a C\\+\\+ compiler, and no-such-compiler is not here"):
        ptqc.bisect(artifact.folder)


def test_the_ptx_that_is_kept_is_what_was_assembled(artifact: Artifact) -> None:
    digest = hashlib.sha256(read_ptx(artifact.folder / "cuda").encode()).hexdigest()
    assert digest == artifact.manifest["targets"]["cuda"]["ptx_sha256"]
    assert image_of(artifact.folder / "cuda" / "cuda.so").startswith(b"\x50\xed\x55\xba")


@pytest.mark.parametrize("content", [b"", b"\x50\xed\x55\xba\x01\x00\x10\x00" + bytes([255] * 8)])
def test_a_library_without_machine_code_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cuda.so").write_bytes(content)
    with pytest.raises(TargetError, match="carries no machine code for GPUs"):
        image_of(tmp_path / "cuda.so")


def test_ptx_that_is_absent_is_told(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not hold the PTX of the library"):
        read_ptx(tmp_path)


def test_a_large_network_is_compared_kernel_by_kernel() -> None:
    from ptqc.codegen.program.listing import Call, Listing

    listing = Listing((Call("f", "k", (), "y", "y", 0, operations=10**8),), {}, (), ())
    assert verification.is_small(listing, 7)
    assert not verification.is_small(listing, 8)


def test_what_did_not_run_end_to_end_is_not_told_as_such(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    def emulated(name: str, folder: Path, listing: Listing, runs: Iterable[Values]) -> Emulated:
        del name, folder, listing
        return Emulated([[] for _ in runs], [], {"a": 0.5})

    monkeypatch.setattr(bisect, "emulate", emulated)
    result = ptqc.bisect(artifact.folder)
    text = ", in the emulator of PTX, kernel by kernel on the first sample of each; of 1 large kernels a part"
    assert str(result).endswith("in 4 runs (lowest, highest, zero, random) of the library for cuda" + text)
    assert result.to_json()["different_end_to_end"] is None
    assert not result.to_json()["is_whole"]
