"""The whole compile: what comes out is complete, verified, within the budget, and the same each time."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import QUICK, compiled, proto, quick, residual, samples, store_of, told_bound, weight
from mostly_slow import mostly_slow

import ptqc
from ptqc.artifact.documents import oldest_runtime
from ptqc.artifact.folder import Artifact
from ptqc.errors import Infeasible, UsageError

REPRODUCIBLE = [
    "golden.safetensors",
    "manifest.json",
    "model.onnx",
    "most_changed.json",
    "plan.json",
    "sensitivity.json",
]

FILES = sorted((*REPRODUCIBLE, "report.html", "run.json"))


def contents(artifact: Artifact) -> dict[str, bytes]:
    return {name: (artifact.folder / name).read_bytes() for name in REPRODUCIBLE}


# What comes out


def test_the_folder_is_complete_and_alone(small: Artifact) -> None:
    assert sorted(path.name for path in small.folder.iterdir()) == FILES
    assert sorted([*small.manifest["files"], "manifest.json", "report.html", "run.json"]) == FILES
    assert sorted(path.name for path in small.folder.parent.iterdir()) == ["cache", "model.onnx", "out"]


def test_the_manifest_says_what_was_given_and_found(small: Artifact) -> None:
    manifest = small.manifest
    assert manifest["source"]["bytes"] == 59172
    assert manifest["source"]["weights"] == 14666
    assert manifest["source"]["name"] == "model.onnx"
    assert manifest["calibration"]["samples"] == 32
    assert manifest["budget"] == "25%"
    assert manifest["options"]["observer"] == "auto"
    assert manifest["file"]["bytes"] == small.path.stat().st_size
    assert manifest["allocation"]["limit"] == 59172 // 4
    assert manifest["verification"]["integer_nodes"] == 6
    assert manifest["verification"]["kernels_compared"] >= 5
    assert manifest["verification"]["codes_compared"] > 2000
    assert manifest["verification"]["operators"]["QLinearConv"] == 3
    assert sum(manifest["weights_by_format"].values()) == 14576
    assert manifest["float_operators"] == {}
    assert manifest["ptqc"] == ptqc.__version__


def test_nothing_volatile_is_in_the_manifest(small: Artifact) -> None:
    text = (small.folder / "manifest.json").read_text()
    assert "seconds" not in text
    assert str(small.folder.parent) not in text
    assert {"seconds", "latency", "peak_memory_mb"} <= small.times.keys()


def test_the_plan_covers_the_model(small: Artifact) -> None:
    assert [entry["weight"] for entry in small.plan["weights"]] == ["w1", "w2", "w3", "w4"]
    assert {c for entry in small.plan["weights"] for c in entry["layers"].values()} == {"integer"}


def test_the_artifact_computes_what_the_float_model_computes(small: Artifact, tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "float.onnx")
    session = ort.InferenceSession(tmp_path / "float.onnx", providers=["CPUExecutionProvider"])
    x = samples(3, 8, 8, seed=11)
    wanted = session.run(None, {"x": x})[0]
    result = ptqc.load(small.folder).run({"x": x})
    assert list(result) == ["y"]
    assert np.abs(result["y"] - wanted).max() < 0.1 * np.abs(wanted).max()
    assert np.array_equal(small.session().run(None, {"x": x})[0], result["y"])


@pytest.mark.parametrize("batch", [1, 3])
def test_a_symbolic_batch_stays_symbolic(small: Artifact, batch: int) -> None:
    assert small.run({"x": samples(3, 8, 8, count=batch)})["y"].shape == (batch, 10)


def test_the_summary_names_the_sizes(small: Artifact) -> None:
    assert f"59,172 -> {small.path.stat().st_size:,} bytes" in small.summary()


@pytest.mark.parametrize("limit", mostly_slow([6_193, 8_000, 12_345], 6_193))
def test_every_byte_limit_is_kept(small: Artifact, tmp_path: Path, limit: int) -> None:
    with quick():
        other = ptqc.resolve(small.folder, output=tmp_path / "out", budget=f"{limit}B", cache=store_of(small))
    file = other.manifest["file"]
    assert other.path.stat().st_size <= limit
    assert abs(file["bytes"] - file["bytes_told_to_solver"]) <= told_bound(other)


@pytest.mark.slow
def test_the_smallest_size_told_is_the_smallest_reachable(small: Artifact, tmp_path: Path) -> None:
    with quick():
        with pytest.raises(Infeasible, match="cannot be met") as refusal:
            ptqc.resolve(small.folder, output=tmp_path / "out", budget="1%", cache=store_of(small))
        smallest = refusal.value.smallest
        assert sum(part for _, part in refusal.value.blockers) <= smallest
        with pytest.raises(Infeasible):
            ptqc.resolve(small.folder, output=tmp_path / "out", budget=f"{smallest - 1}B", cache=store_of(small))
        assert not (tmp_path / "out").exists()
        other = ptqc.resolve(small.folder, output=tmp_path / "out", budget=f"{smallest}B", cache=store_of(small))
    assert other.path.stat().st_size == smallest
    assert set(other.manifest["weights_by_format"]) <= {"int2", "codebook2", "pairs3"}


def test_without_a_budget_all_layers_are_integer_and_the_file_shrinks(small: Artifact, tmp_path: Path) -> None:
    with quick():
        free = ptqc.resolve(small.folder, output=tmp_path / "free", cache=store_of(small))
        wide = ptqc.resolve(small.folder, output=tmp_path / "wide", cache=store_of(small), budget="200%")
    assert free.manifest["verification"]["integer_nodes"] == 6
    assert free.path.stat().st_size < 59172 / 3
    assert wide.path.read_bytes() == free.path.read_bytes()


def test_bytes_that_lower_no_loss_are_not_spent(tmp_path: Path) -> None:
    """A table of three values is exact as a palette of 2 bits, whatever the budget."""
    table = np.random.default_rng(0).choice(np.array([0.0, 0.3, -1.7], np.float32), (100, 64))
    model = proto("g (int64[N,4] x) => (float[N,4,64] y) { y = Gather(w, x) }", w=table)
    result = compiled(model, np.arange(128).reshape(32, 4) % 100, tmp_path, "200%")
    assert result.manifest["weights_by_format"] == {"palette2": 6400}
    assert result.path.stat().st_size < 6400 / 4 + 1000
    assert np.array_equal(result.run({"x": np.array([[1, 2, 3, 99]])})["y"][0], table[[1, 2, 3, 99]])


# How outputs are judged


def test_outputs_are_judged_as_what_they_are_or_are_said_to_be(tmp_path: Path) -> None:
    """A label's scores and an embedding; the store and a second budget keep what was chosen."""
    text = """g (float[N,16] x) => (float[N,8] y, float[N,48] z) {
        h = Gemm(x, a) r = Relu(h) y = Gemm(r, b) v = Gemm(r, c) z = LpNormalization(v)
    }"""
    model = proto(text, a=weight(16, 32), b=weight(32, 8), c=weight(32, 48))
    result = compiled(model, samples(16), tmp_path, "40%", bits=(4, 7))
    assert [output["kind"] for output in result.manifest["results"]["outputs"]] == ["logits", "embedding"]
    assert result.manifest["results"]["loss_unit"] == "relative squared error"
    assert "z compared as embedding along axis 1, normalized: mean cosine " in " ".join(result.summary().split())
    other = compiled(model, samples(16), tmp_path / "other", "40%", bits=(4, 7), loss={"y": "regression"})
    assert [output["kind"] for output in other.manifest["results"]["outputs"]] == ["regression", "embedding"]
    assert other.manifest["results"]["top1_agreement"] is None
    assert other.manifest["options"]["loss"] == {"y": "regression"}
    with quick():
        again = ptqc.resolve(other.folder, output=tmp_path / "again", budget="45%", cache=store_of(other))
    assert [output["kind"] for output in again.manifest["results"]["outputs"]] == ["regression", "embedding"]


def test_a_loss_of_an_unknown_output(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="loss: the model has no output 'logits'; its outputs: y"):
        compiled(residual(), samples(3, 8, 8), tmp_path, loss={"logits": "kl"})


def test_resolve_with_the_same_budget_gives_the_same_artifact(small: Artifact, tmp_path: Path) -> None:
    with quick():
        again = ptqc.resolve(small.folder, output=tmp_path / "out", budget="25%", cache=store_of(small))
    assert contents(again) == contents(small)


def test_a_time_limit_is_told_and_measurements_serve_both(small: Artifact, tmp_path: Path) -> None:
    with quick():
        short = ptqc.resolve(
            small.folder, output=tmp_path / "out", budget="18%", cache=store_of(small), time_limit=1e-3
        )
    assert short.manifest["cut_short"]
    assert not small.manifest["cut_short"]
    assert short.manifest["measurements"] == small.manifest["measurements"]
    assert short.summary().startswith("CUT SHORT")
    assert any("no comparison with weights rounded to nearest" in note.message for note in short.warnings)


def test_resolve_with_a_plan_gives_its_model(small: Artifact, tmp_path: Path) -> None:
    plan = json.loads((small.folder / "plan.json").read_text())
    with quick():
        again = ptqc.resolve(small.folder, output=tmp_path / "out", plan=plan, cache=store_of(small))
    assert again.path.read_bytes() == small.path.read_bytes()
    assert again.manifest["allocation"]["status"] == "given"


def test_a_plan_over_the_budget_is_refused(small: Artifact, tmp_path: Path) -> None:
    plan = json.loads((small.folder / "plan.json").read_text())
    with quick(), pytest.raises(UsageError, match=r"given plan has 14,\d\d\d bytes, over the budget of 9,000"):
        ptqc.resolve(small.folder, output=tmp_path / "out", plan=plan, budget="9000B", cache=store_of(small))
    assert not (tmp_path / "out").exists()


def test_an_edited_plan_is_followed(small: Artifact, tmp_path: Path) -> None:
    plan = json.loads((small.folder / "plan.json").read_text())
    for entry in plan["weights"]:
        entry["format"] = "int4"
    with quick():
        again = ptqc.resolve(small.folder, output=tmp_path / "out", plan=plan, cache=store_of(small))
    assert again.manifest["weights_by_format"] == {"int4": 14576}


# The same each time


def test_a_second_compile_gives_the_same_bytes(small: Artifact, tmp_path: Path) -> None:
    again = compiled(residual(), samples(3, 8, 8), tmp_path, "25%", activations="integer")
    assert contents(again) == contents(small)


@pytest.mark.slow
def test_another_process_and_place_give_the_same_bytes(small: Artifact, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=samples(3, 8, 8))
    onnx.save(residual(), tmp_path / "model.onnx")
    command = [sys.executable, "-c", QUICK, "compile", "model.onnx", "--calibration", "c.npz", "--budget", "25%"]
    settings = {"PYTHONHASHSEED": "77", "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [*command, "--activations", "integer", "-o", "elsewhere", "--cache", "own", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert contents(ptqc.load(tmp_path / "elsewhere")) == contents(small)


def test_a_subset_of_samples_is_told_without_the_users_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=samples(8))
    model = proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(8, 8))
    result = compiled(model, tmp_path / "c.npz", tmp_path, samples=8)
    assert "8 of the 32 samples" in str(result.manifest["notes"])
    assert str(tmp_path) not in (result.folder / "manifest.json").read_text()


@pytest.mark.slow
def test_another_seed_is_another_compile(small: Artifact, tmp_path: Path) -> None:
    other = compiled(
        residual(), samples(3, 8, 8), tmp_path, "25%", seed=1, cache=store_of(small), activations="integer"
    )
    assert other.manifest["measurements"] != small.manifest["measurements"]


def test_force_replaces(tmp_path: Path) -> None:
    model = proto("g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }", w=weight(8, 8))
    first = compiled(model, samples(8), tmp_path).path.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        compiled(model, samples(8), tmp_path, bits=(3,))
    assert ptqc.load(tmp_path / "out").path.read_bytes() == first
    compiled(model, samples(8), tmp_path, bits=(3,), force=True, activations="integer")
    assert ptqc.load(tmp_path / "out").manifest["weights_by_format"] in (
        {"int3": 64},
        {"codebook3": 64},
        {"pairs5": 64},
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "model.onnx", "out"]


def test_the_oldest_runtime_is_the_later_of_two() -> None:
    assert oldest_runtime(18, 8) == oldest_runtime(18, 10)
    assert oldest_runtime(18, 11) == "1.22"
    assert oldest_runtime(23, 8) == "1.23"
    assert oldest_runtime(24, 12) == "1.24"
    assert oldest_runtime(18, 8, ["MatMulNBits"]) == "1.18"
    assert oldest_runtime(21, 10, ["DequantizeLinear"]) == "1.19"
    assert oldest_runtime(18, 11, ["GatherBlockQuantized", "MatMulNBits"]) == "1.23"


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "share", "options"),
    [(32, 4, {"bits": (3, 4)}), (64, 1, {})],
    ids=["few", "usual"],
)
def test_a_real_residual_network_keeps_its_accuracy(
    count: int, share: int, options: dict[str, Any], shared_data: Path, tmp_path: Path
) -> None:
    arrays = np.load(shared_data / "data" / "cifar10.npz")
    mean, deviation = np.array([[123.675, 116.28, 103.53], [58.395, 57.12, 57.375]], np.float32)

    def normalized(pixels: np.ndarray) -> np.ndarray:
        return ((pixels - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2)

    images, labels = normalized(arrays["eval_jpeg_x"][::share]), arrays["eval_jpeg_y"][::share]

    def top1(run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> float:
        result = [next(iter(run({"input": some}).values())).argmax(-1) for some in np.array_split(images, 60)]
        return 100 * float(np.mean(np.concatenate(result) == labels))

    path = shared_data / "models" / "cifar10_resnet20.onnx"
    result = compiled(path, normalized(arrays["calib_x"][:count]), tmp_path, "13%", evaluate=top1, **options)
    results = result.manifest["results"]
    assert result.path.stat().st_size <= path.stat().st_size * 13 // 100
    assert results["float_score"] > 79  # the data are read as they should be
    assert results["compiled_score"] >= results["float_score"] - 3
