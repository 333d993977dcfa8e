"""The networks in models/: budgets, accuracy, interfaces, batches and the smallest sizes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import assert_same_interface, compiled, quick, store_of, told_bound
from mostly_slow import mostly_slow

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.codegen.onnxruntime import size
from ptqc.errors import Infeasible

ROOT = Path(__file__).resolve().parent.parent
# Of the unit of scales of a weight, which weights with the same unit share.
UNIT_BYTES = 16


@pytest.fixture(scope="module")
def digits(
    tmp_path_factory: pytest.TempPathFactory, digits_model_path: Path, digits_calibration: np.ndarray
) -> Artifact:
    """The README's network at its budget."""
    return compiled(digits_model_path, digits_calibration, tmp_path_factory.mktemp("digits"), "13%")


# The budget


@pytest.mark.slow
def test_digits_meet_their_budget_and_use_it(digits: Artifact, digits_model_path: Path) -> None:
    limit = digits_model_path.stat().st_size * 13 // 100
    written = digits.path.stat().st_size
    assert 0.99 * limit <= written <= limit


@pytest.mark.slow
def test_digits_keep_their_accuracy(digits: Artifact, digits_evaluation: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = digits_evaluation
    result = digits.run({"input": x})
    hits = next(iter(result.values())).argmax(-1) == labels
    assert 100 * hits.mean() > 97.6  # float: 98.61; weights rounded to 3 bits: 97.66, which is more bytes than this


@pytest.mark.slow
def test_digits_file_is_as_large_as_the_solver_was_told(digits: Artifact) -> None:
    file = digits.manifest["file"]
    assert abs(file["bytes"] - file["bytes_told_to_solver"]) <= told_bound(digits)


# Other models, and other budgets from the store


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    images = np.random.default_rng(0).random((8, 3, 64, 64), dtype=np.float32)
    path = ROOT / "models" / "tiny_detector_silu.onnx"
    return compiled(path, images, tmp_path_factory.mktemp("detector"), "25%", bits=(2, 4, 7))


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    tokens = np.random.default_rng(0).integers(0, 20, (32, 12))
    path = ROOT / "models" / "tiny_gru_tagger.onnx"
    return compiled(path, tokens, tmp_path_factory.mktemp("tagger"), "25%")


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    pixels = np.random.default_rng(0).random((32, 64), dtype=np.float32)
    return compiled(ROOT / "models" / "tiny_mlp.onnx", pixels, tmp_path_factory.mktemp("mlp"), "25%")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "budget"),
    [("tagger", "30%"), ("digits", "10%"), ("digits", "25%")],
)
def test_classifiers_are_resolved_without_their_data(
    name: str, budget: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    artifact: Artifact = request.getfixturevalue(name)
    with quick():
        other = ptqc.resolve(artifact.folder, output=tmp_path / "out", budget=budget, cache=store_of(artifact))
    limit = other.manifest["source"]["bytes"] * int(budget[:-1]) // 100
    assert other.path.stat().st_size <= limit
    assert other.manifest["results"]["top1_agreement"] > 0.9
    assert other.manifest["calibration"] == artifact.manifest["calibration"]


@pytest.mark.long
@pytest.mark.parametrize("name", mostly_slow(["tagger", "mlp", "detector", "digits"], "tagger"))
def test_the_projects_models_keep_budget_and_interface(name: str, request: pytest.FixtureRequest) -> None:
    artifact: Artifact = request.getfixturevalue(name)
    original = onnx.load(ROOT / "models" / artifact.manifest["source"]["name"])
    assert artifact.path.stat().st_size <= artifact.manifest["allocation"]["limit"]
    assert_same_interface(original, onnx.load(artifact.path))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_the_projects_models_take_any_batch(detector: Artifact, tagger: Artifact, mlp: Artifact, batch: int) -> None:
    images = np.random.default_rng(1).random((batch, 3, 64, 64), dtype=np.float32)
    assert detector.run({"images": images})["detections"].shape == (batch, 80, 8)
    assert tagger.run({"tokens": np.ones((batch, 7), np.int64)})["logits"].shape == (batch, 7, 8)
    assert mlp.run({"pixels": np.ones((batch, 64), np.float32)})["drawn"].shape == (batch, 64)


@pytest.mark.slow
def test_rows_of_a_batch_are_independent(detector: Artifact) -> None:
    images = np.random.default_rng(1).random((3, 3, 64, 64), dtype=np.float32)
    together = detector.run({"images": images})["detections"]
    alone = [detector.run({"images": image[None]})["detections"][0] for image in images]
    assert np.allclose(together, np.stack(alone), atol=1e-4)


def test_what_computes_in_float_is_named(tagger: Artifact) -> None:
    notes = {note["subject"]: note["message"] for note in tagger.manifest["notes"] if note["step"] == "lower"}
    assert any(message.startswith("GRU computes in float: ONNX Runtime has no") for message in notes.values())
    assert any(message.startswith("Gather computes in float") for message in notes.values())
    assert tagger.manifest["float_operators"]["GRU"] == 1
    assert "in float" in tagger.summary()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "detector", "tagger"])
def test_the_projects_models_name_their_smallest_size(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    artifact: Artifact = request.getfixturevalue(name)
    with quick(), pytest.raises(Infeasible) as refusal:
        ptqc.resolve(artifact.folder, output=tmp_path / "out", budget="2%", cache=store_of(artifact))
    smallest = refusal.value.smallest
    units = UNIT_BYTES * len(artifact.plan["weights"])
    assert abs(smallest - artifact.manifest["allocation"]["smallest_bytes"]) <= size.BOUND + units
    with quick():
        result = ptqc.resolve(artifact.folder, output=tmp_path / "out", budget=f"{smallest}B", cache=store_of(artifact))
    assert 0.99 * smallest <= result.path.stat().st_size <= smallest
