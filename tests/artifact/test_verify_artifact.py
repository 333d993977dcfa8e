"""An artifact is checked anew from its files alone; whatever was changed since is found."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import onnx.parser
import onnx_ir
import pytest
from compiling import compiled, residual, samples
from onnx import numpy_helper
from safetensors.numpy import save

import ptqc
from ptqc.artifact import golden, verify
from ptqc.artifact.bisect import EMULATED, Bisection, read_kernels
from ptqc.artifact.folder import GOLDEN, MANIFEST, MODEL, Artifact
from ptqc.artifact.golden import Golden
from ptqc.cli.main import main
from ptqc.errors import IntegrityError, TargetError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Runner
from ptqc.runtime.interface import KERNELS
from ptqc.utils.text import percent

pytestmark = pytest.mark.processor


@pytest.fixture(scope="module")
def artifact(small: Artifact) -> Artifact:
    return small


@pytest.fixture
def copy(artifact: Artifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact.folder, tmp_path / "out"))


def seal(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _manifest: None) -> None:
    """Make the manifest's hashes those of the files, as someone who hides a change would."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["files"]}
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_delivered_artifact_passes(artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(artifact.folder), "--model", str(artifact.folder.parent / "model.onnx")]) == 0
    printed = capsys.readouterr().out
    assert "5 have the SHA-256 of the manifest" in printed
    assert "6 integer kernels give what the reference gives (5,204 numbers compared)" in printed
    assert "gives the recorded outputs on 2 golden samples\n" in printed
    assert "is the one that was compiled" in printed


@pytest.mark.slow
def test_golden_samples_are_the_same_in_every_compile(artifact: Artifact, tmp_path: Path) -> None:
    again = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", activations="integer")
    assert (again.folder / GOLDEN).read_bytes() == (artifact.folder / GOLDEN).read_bytes()
    assert again.manifest["golden"] == artifact.manifest["golden"]


def test_a_changed_file_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (copy / MODEL).read_bytes()
    (copy / MODEL).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["verify", str(copy)]) == IntegrityError.exit_code == 4
    assert "was changed after it was compiled" in capsys.readouterr().err
    assert main(["verify", str(copy / "nowhere")]) == UsageError.exit_code == 2


def test_changed_weights_behind_a_new_hash_are_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(copy / MODEL)
    planes = max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    planes.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(planes)[::-1].copy(), planes.name))
    (copy / MODEL).write_bytes(proto.SerializeToString())
    seal(copy)
    assert main(["verify", str(copy)]) == 70
    assert "differs from what the machine that compiled it got" in capsys.readouterr().err


def test_a_kernel_that_computes_something_else_is_found(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptqc.ir import integer_arithmetic as integer

    right = integer.requantize
    monkeypatch.setattr(integer, "requantize", lambda x, factor, y: right(x, factor * np.float32(1.01), y))
    with pytest.raises(VerificationError, match=r"^Conv ar: .*integers differ from the reference"):
        ptqc.verify(copy)


def test_a_kernel_that_went_missing_is_found(copy: Path) -> None:
    seal(copy, lambda manifest: manifest["verification"].update(kernels_compared=7))
    with pytest.raises(VerificationError, match=r"finds 6 integer kernels .* says 7"):
        ptqc.verify(copy)


@pytest.mark.parametrize("kind", [np.int32, np.float64, np.float16])
def test_golden_inputs_of_another_type_are_refused(kind: type[np.generic], copy: Path) -> None:
    stored = Golden.read(copy / GOLDEN)
    inputs = [{name: array.astype(kind) for name, array in sample.items()} for sample in stored.inputs]
    (copy / GOLDEN).write_bytes(Golden(tuple(inputs), stored.outputs).to_bytes())
    seal(copy)
    with pytest.raises(IntegrityError, match=rf"feeds 'x' as {kind.__name__}, unlike model.onnx"):
        ptqc.verify(copy)


def test_other_golden_outputs_are_found(copy: Path) -> None:
    stored = Golden.read(copy / GOLDEN)
    changed = Golden(stored.inputs, tuple({"y": sample["y"] * 1.1} for sample in stored.outputs))
    (copy / GOLDEN).write_bytes(changed.to_bytes())
    seal(copy)
    with pytest.raises(VerificationError, match=r"output 'y' of model\.onnx differs"):
        ptqc.verify(copy)


def test_outputs_of_another_type_are_found(copy: Path) -> None:
    stored = Golden.read(copy / GOLDEN)
    changed = Golden(stored.inputs, tuple({"y": sample["y"].astype(np.float16)} for sample in stored.outputs))
    (copy / GOLDEN).write_bytes(changed.to_bytes())
    seal(copy)
    with pytest.raises(VerificationError, match="another type or shape"):
        ptqc.verify(copy)


def test_outputs_that_the_file_does_not_give_are_found(copy: Path) -> None:
    stored = Golden.read(copy / GOLDEN)
    changed = Golden(stored.inputs, tuple({**sample, "z": sample["y"]} for sample in stored.outputs))
    (copy / GOLDEN).write_bytes(changed.to_bytes())
    seal(copy)
    with pytest.raises(VerificationError, match=r"model\.onnx does not give the recorded outputs 'z'"):
        ptqc.verify(copy)


def test_a_rounding_of_another_machine_is_told(copy: Path) -> None:
    stored = Golden.read(copy / GOLDEN)
    changed = Golden(stored.inputs, tuple({"y": sample["y"] * np.float32(1.001)} for sample in stored.outputs))
    (copy / GOLDEN).write_bytes(changed.to_bytes())
    seal(copy)
    assert "to 1.0e-03 of their size" in ptqc.verify(copy).checks["golden"]


def test_the_difference_from_the_float_model_is_graded(artifact: Artifact) -> None:
    said = ptqc.verify(artifact, model=artifact.folder.parent / "model.onnx").checks["model"]
    then = percent(max(artifact.manifest["golden"]["distances"].values()))
    assert f"({then} when it was compiled): divergence " in said
    assert any(f"({grade})" in said for grade in ("negligible", "small", "noticeable", "large"))


def test_another_model_is_refused(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = residual()
    other.producer_name = "another exporter"
    onnx.save(other, tmp_path / "other.onnx")
    assert main(["verify", str(copy), "--model", str(tmp_path / "other.onnx")]) == 4
    assert "is not the model that" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"junk" * 9])
def test_without_golden_samples_an_artifact_is_refused(copy: Path, content: bytes | None) -> None:
    (copy / GOLDEN).unlink()
    if content is not None:
        (copy / GOLDEN).write_bytes(content)
        seal(copy)
    else:
        seal_without_golden(copy)
    with pytest.raises(IntegrityError, match="does not hold golden samples"):
        ptqc.verify(copy)


X, TEXT = np.zeros(1, np.float32), np.full((1, 2), ord("a"), np.uint32)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"0.input.x": X, "0.output.y": X, "9999999999.input.x": X},
        {"-1.input.x": X, "0.input.x": X, "0.output.y": X},
        {f"{number}.{role}": X for number in range(3) for role in ("input.x", "output.y")},
        {"0.input.x": X},
        {"0.output.y": X},
        {"0.input.x": X, "0.output.y": X, "1.input.x": X, "1.output.z": X},
        {"0.input.x": X, "0.text.t": TEXT[0, 0, ...], "0.output.y": X},
        {"0.input.x": X, "0.text.t": TEXT[:, :0], "0.output.y": X},
        {"0.input.x": X, "0.text.t": TEXT + 0xFFFFFF, "0.output.y": X},
    ],
)
def test_what_is_no_golden_sample_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    (tmp_path / GOLDEN).write_bytes(save({name: array.copy() for name, array in arrays.items()}))
    with pytest.raises(IntegrityError, match="does not hold golden samples"):
        Golden.read(tmp_path / GOLDEN)


def test_golden_texts_are_read(tmp_path: Path) -> None:
    stored = Golden(({"t": np.array(["ä", "bc"])},), ({"y": X},))
    (tmp_path / GOLDEN).write_bytes(stored.to_bytes())
    assert Golden.read(tmp_path / GOLDEN).inputs[0]["t"].tolist() == ["ä", "bc"]


def seal_without_golden(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["files"][GOLDEN]
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_large_samples_are_kept_alone() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    feeds = [{"x": np.ones(golden.MOST_BYTES // 4, np.float32)}] * 3
    stored, distances = golden.take(onnx_ir.from_proto(model), model, feeds)
    assert len(stored.inputs) == len(stored.outputs) == 1
    assert distances == {"y": 0.0}


def test_values_that_the_file_does_not_have_are_no_recorded_ones(copy: Path) -> None:
    seal(copy, lambda manifest: manifest.update(recorded={"x.recorded": "nothere"}))
    with pytest.raises(IntegrityError, match="is not as `ptqc compile` writes it"):
        ptqc.verify(copy)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{}", '{"libraries": {}, "names": 5}'])
def test_what_lists_no_kernels_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / KERNELS).write_text(content)
    with pytest.raises(TargetError, match="does not list the kernels of a native library"):
        read_kernels(tmp_path / KERNELS)


def of_library(folder: Path, name: str, document: dict[str, Any], targets: tuple[str, ...]) -> MagicMock:
    """The artifact with a library, of which nothing but what is told of its kernels is there."""
    (folder / name).mkdir()
    (folder / name / KERNELS).write_text(json.dumps({"libraries": {}, "names": {}, "seen": {}, **document}))
    manifest = json.loads((folder / MANIFEST).read_text()) | {"targets": {"cuda": {}}}
    runnable = name if name == "cpu" else ""
    return MagicMock(folder=folder, path=folder / MODEL, manifest=manifest, runnable=runnable, targets=targets)


def test_a_golden_batch_that_a_library_cuts_is_compared_as_cut(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library built for one sample a run; the golden sample has three."""
    runner, x = Runner(copy / MODEL), samples(3, 8, 8)[:3]
    stored = Golden(({"x": x}, {"x": x[:1]}), (runner.run({"x": x}), runner.run({"x": x[:1]})))
    seen = {"x": {"dtype": "float32", "shape": [1, 3, 8, 8], "low": 0.0, "high": 1.0}}
    of_cuda = of_library(copy, "cuda", {"by_run": True, "seen": seen}, ("cuda",))
    result = {f"sample {index}": runner.run({"x": x[:1]}) for index in range(2)}
    monkeypatch.setattr(verify, "check_emulated", lambda *_: None)
    monkeypatch.setattr(verify, "bisect", lambda *_, **__: Bisection([], [EMULATED], outputs=result))
    assert verify._library(of_cuda, stored).endswith("the CUDA library gives the recorded outputs on 2 golden samples")
    result["sample 0"] = {"y": result["sample 0"]["y"] * 2}
    with pytest.raises(VerificationError, match="output 'y' of the CUDA library differs"):
        verify._library(of_cuda, stored)


def test_of_two_libraries_each_is_held_to_the_recorded_outputs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Golden.read(copy / GOLDEN)
    of_library(copy, "cuda", {"by_run": False}, ("cpu", "cuda"))
    both = of_library(copy, "cpu", {"by_run": False}, ("cpu", "cuda"))
    result = {f"sample {index}": dict(outputs) for index, outputs in enumerate(stored.outputs)}
    both.native.return_value.run = Runner(copy / MODEL).run
    monkeypatch.setattr(verify, "check_emulated", lambda *_: None)
    monkeypatch.setattr(verify, "bisect", lambda *_, **__: Bisection([], ["avx2", EMULATED], outputs=result))
    compared = verify._library(both, stored)
    assert "; the native library gives the recorded outputs on " in compared
    assert "; the CUDA library gives the recorded outputs on " in compared
    result["sample 0"]["y"] = result["sample 0"]["y"] * 2
    with pytest.raises(VerificationError, match="output 'y' of the CUDA library differs"):
        verify._library(both, stored)
    result.clear()
    assert verify._library(both, stored).endswith("; the CUDA library as a whole would take the emulator too long")
