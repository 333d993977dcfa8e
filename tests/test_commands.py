"""What a command states of images and detectors replaces only that; the rest is as the artifact keeps it."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from ptqc import commands
from ptqc.calibration.images import Preprocessing
from ptqc.command_line import parse
from ptqc.detection.detector import Detector

KEPT = SimpleNamespace(
    preprocessing=Preprocessing(resize=256, mean=0.5, std=0.25), detector=Detector(boxes="xyxy", box_unit="shares")
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Taken for an artifact that keeps KEPT."""
    monkeypatch.setattr("ptqc.artifact.folder.load", lambda _folder: KEPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(*words: str) -> argparse.Namespace:
    return parse(["eval", "m.onnx", "--metric", "map", "--data", "images", *words])


def test_what_is_stated_of_images(folder: Path) -> None:
    models = ("m.onnx", str(folder))
    assert commands._preprocessing(given("--resize", "300"), *models) == Preprocessing(resize=300, mean=0.5, std=0.25)
    assert commands._preprocessing(given("--resize", "300"), "m.onnx") == Preprocessing(resize=300)
    assert commands._preprocessing(given(), *models) is None
    (folder / "p.toml").write_text("std = 2.0")
    told = given("--preprocessing", "p.toml", "--mean", "1")
    assert commands._preprocessing(told, *models) == Preprocessing(mean=1.0, std=2.0)


def test_what_is_stated_of_detectors(folder: Path) -> None:
    told = given("--boxes", "yxyx", "--classes", "ids")
    assert commands._detector(told, str(folder)) == Detector(boxes="yxyx", box_unit="shares", classes="ids")
    assert commands._detector(told) == Detector(boxes="yxyx", classes="ids")
    assert commands._detector(given(), str(folder)) is None
