"""Files that are too large for one message; the limit is a small one here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import compiled, proto, weight

import ptqc
from ptqc.errors import IntegrityError
from ptqc.execution.onnxruntime import Runner
from ptqc.ir import external
from ptqc.ir.external import is_in_two, is_split, size_of, write_split

GRAPH = "g (float[N,64] x) => (float[N,80] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"
FEEDS = {"x": np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)}


def network() -> onnx.ModelProto:
    return proto(GRAPH, w=weight(64, 512), v=weight(512, 80, seed=1))


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "MESSAGE_LIMIT", 4000)
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)


@pytest.mark.usefixtures("small_limit")
def test_both_files_together_are_the_model(tmp_path: Path) -> None:
    model = network()
    assert is_split(model)
    assert is_in_two(model)
    path, data = write_split(model, tmp_path / "some.onnx")
    assert (path.name, data.name) == ("some.onnx", "some.data")
    assert path.stat().st_size + data.stat().st_size == size_of(model, "some.onnx")
    assert path.stat().st_size < 1000
    onnx.checker.check_model(path)
    whole = onnx.load(path)
    for result, wanted in zip(whole.graph.initializer, model.graph.initializer, strict=True):
        assert np.array_equal(onnx.numpy_helper.to_array(result), onnx.numpy_helper.to_array(wanted))
    (result,) = ort.InferenceSession(path).run(None, FEEDS)
    assert np.array_equal(result, Runner(model).run(FEEDS)["y"])


def test_what_fits_is_not_split() -> None:
    model = network()
    assert not is_split(model)
    assert not is_in_two(model)
    assert size_of(model, "model.onnx") == len(model.SerializeToString())


def given() -> list[dict[str, np.ndarray]]:
    return [{"x": row[None]} for row in np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)]


@pytest.mark.slow
def test_an_artifact_of_two_files_is_one_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget, hashes, runs, verification and resolving; formats are those of one file, and the outputs are close."""
    options: dict[str, Any] = {"bits": (2, 3, 4), "cache": tmp_path / "store", "activations": "integer"}
    one = compiled(network(), given(), tmp_path / "one", budget="28kB", **options)
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 4000)
    two = compiled(network(), given(), tmp_path / "two", budget="28kB", **options)
    names = {"model.onnx", "model.data"}
    assert names <= two.manifest["files"].keys()
    assert two.manifest["file"]["bytes"] == sum((two.folder / name).stat().st_size for name in names) <= 28_000
    assert two.plan["weights"] == one.plan["weights"]
    # Batches are smaller, and what waits for later layers is rounded batch by batch, so that single codes differ.
    assert two.manifest["results"]["loss"] == pytest.approx(one.manifest["results"]["loss"], rel=0.1)
    assert "golden" in ptqc.verify(two.folder, model=None).checks
    resolved = ptqc.resolve(two.folder, budget="38kB", output=tmp_path / "larger", cache=tmp_path / "store")
    assert 28_000 < resolved.manifest["file"]["bytes"] <= 38_000
    assert (resolved.folder / "model.data").is_file()
    with (two.folder / "model.data").open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(IntegrityError, match=r"model\.data was changed after it was compiled"):
        ptqc.load(two.folder)
    (two.folder / "model.data").unlink()
    with pytest.raises(IntegrityError, match=r"model\.data is missing"):
        ptqc.load(two.folder)
    assert json.loads((two.folder / "manifest.json").read_text())["files"]["model.data"]
