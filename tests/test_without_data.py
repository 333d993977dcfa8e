"""Compiling without calibration data: the whole way, and what the user is told."""

from pathlib import Path

import numpy as np
import pytest
from compiling import compiled, residual

from ptqc.artifact.folder import Artifact
from ptqc.errors import CalibrationError

MODELS = Path(__file__).resolve().parent.parent / "models"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory, digits_model_path: Path) -> Artifact:
    folder = tmp_path_factory.mktemp("digits")
    return compiled(digits_model_path, "synthetic", folder, "25%", samples=32, bits=(4, 6))


@pytest.mark.slow
def test_digits_keep_most_of_their_accuracy(digits: Artifact, digits_evaluation: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = digits_evaluation
    hits = digits.run({"input": x})["logits"].argmax(-1) == labels
    assert 100 * hits.mean() > 95  # float: 98.61


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("tagger")
    return compiled(MODELS / "tiny_gru_tagger.onnx", "synthetic", folder, "40%", samples=32, bits=(4, 7))


def test_the_warning_is_in_manifest_summary_and_report(tagger: Artifact) -> None:
    messages = [note["message"] for note in tagger.manifest["notes"] if note["level"] == "warning"]
    assert "calibrated without data" in messages[0]
    assert "WARNING     calibrated without data" in tagger.summary()
    assert "calibrated without data" in (tagger.folder / "report.html").read_text()


def test_tokens_are_drawn_from_the_embedding(tagger: Artifact) -> None:
    assert tagger.manifest["calibration"]["samples"] == 32
    assert tagger.run({"tokens": np.zeros((2, 9), np.int64)})


@pytest.mark.slow
def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    first, again, other = (
        compiled(residual(), "synthetic", tmp_path / name, samples=8, bits=(4,), seed=seed)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first.path.read_bytes() == again.path.read_bytes()
    assert first.manifest["calibration"] == again.manifest["calibration"]
    assert first.manifest["calibration"]["sha256"] != other.manifest["calibration"]["sha256"]


def test_a_path_named_synthetic_is_still_a_path(tmp_path: Path) -> None:
    (tmp_path / "synthetic").mkdir()
    with pytest.raises(CalibrationError, match="holds no calibration data"):
        compiled(residual(), tmp_path / "synthetic", tmp_path)
