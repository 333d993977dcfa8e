"""What a command states of images and detectors replaces only that; the rest is as the artifact keeps it."""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ptqc.calibration.images import Preprocessing
from ptqc.cli import commands
from ptqc.cli.parser import parse
from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.losses import NAMES
from ptqc.options import CompileOptions, Phase

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
    stated = given("--preprocessing", "p.toml", "--mean", "1")
    assert commands._preprocessing(stated, *models) == Preprocessing(mean=1.0, std=2.0)


def test_a_preset_of_images_and_what_replaces_a_part_of_it(folder: Path) -> None:
    stated = given("--preprocessing", "yolox", "--resize", "416")
    wanted = Preprocessing(resize=416, fit="letterbox-corner", scale=1.0, channel_order="BGR")
    assert commands._preprocessing(stated, str(folder)) == wanted
    with pytest.raises(UsageError, match=r"imagnet \(did you mean imagenet\?\); known: imagenet, .*, or a TOML file"):
        commands._preprocessing(given("--preprocessing", "imagnet"))
    with pytest.raises(UsageError, match=r"cannot read preprocessing from missing\.toml"):
        commands._preprocessing(given("--preprocessing", "missing.toml"))


def test_a_preset_of_detectors_and_what_replaces_a_part_of_it(folder: Path) -> None:
    stated = given("--detector", "torchvision", "--classes", "ids", "--detector-outputs", "boxes=b")
    wanted = Detector(boxes="xyxy", box_unit="pixels", classes="ids", outputs={"boxes": "b"})
    assert commands._detector(stated, str(folder)) == wanted
    assert commands._detector(given("--detector", "ssd", "--anchors", "a.npy")).anchors == "a.npy"
    with pytest.raises(UsageError, match="needs anchors"):
        commands._detector(given("--detector", "ssd"))
    with pytest.raises(UsageError, match=r"yolo \(did you mean yolox\?\); known: yolov5, yolov8"):
        commands._detector(given("--detector", "yolo"))


def test_what_is_stated_of_detectors(folder: Path) -> None:
    options = given("--boxes", "yxyx", "--classes", "ids")
    assert commands._detector(options, str(folder)) == Detector(boxes="yxyx", box_unit="shares", classes="ids")
    assert commands._detector(options) == Detector(boxes="yxyx", classes="ids")
    assert commands._detector(given(), str(folder)) is None


def test_the_documentation_names_every_kind_of_output() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "judging-a-result.md").read_text()
    section = page.partition("## How outputs are compared")[2].partition("\n## ")[0]
    assert [name for name in NAMES if f"`{name}`" not in section] == []


# A value of each option, as words and as `ptqc.compile` takes it.
STATED: dict[str, tuple[list[str], object]] = {
    "samples": (["--samples", "48"], 48),
    "observer": (["--observer", "mse"], "mse"),
    "activations": (["--activations", "float"], "float"),
    "activation_limit": (["--activation-limit", ".5"], 0.5),
    "loss": (["--loss", "y=logits", "--loss", "z=mse"], {"y": "logits", "z": "mse"}),
    "sensitivity": (["--sensitivity", "curvature"], "curvature"),
    "bits": (["--bits", "2,4"], (2, 4)),
    "formats": (["--formats", "int,codebook"], ("int", "codebook")),
    "sparsity": (["--sparsity", "2:4"], "2:4"),
    "scales": (["--scales", "pow2"], "pow2"),
    "runtime": (["--for", "qnn"], "qnn"),
    "allow_8bit": (["--allow-8bit"], True),
    "seed": (["--seed", "7"], 7),
    "pipeline": (["--pipeline", "advanced"], "advanced"),
    "time_limit": (["--time-limit", "5m"], 300.0),
    "cast_double": (["--no-cast-double"], False),
    "float_layers": (["--float-layers", "bfloat16"], "bfloat16"),
    "inline": (["--inline"], True),
    "operators": (["--operators", "onnxruntime"], "onnxruntime"),
    "rewrites": (["--rewrite", "one", "--rewrite", "two"], ["one", "two"]),
    "kv_cache": (["--kv-cache", "int8"], "int8"),
}


@pytest.mark.parametrize("name", CompileOptions.names())
def test_every_option_reaches_the_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr("ptqc.api.compile", lambda *_, **options: seen.update(options))
    monkeypatch.setattr(commands, "_done", lambda *_: None)
    words, value = STATED[name]
    commands.run_compile(parse(["compile", "m.onnx", "-o", "out", *words]))
    assert {option: seen[option] for option in seen.keys() & set(CompileOptions.names())} == {name: value}
    CompileOptions.of({name: value})


@pytest.mark.parametrize("name", CompileOptions.names(Phase.FIT))
def test_options_that_nothing_measured_reads_reach_resolve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr("ptqc.api.resolve", lambda *_, **options: seen.update(options))
    monkeypatch.setattr(commands, "_done", lambda *_: None)
    words, value = STATED[name]
    commands.run_resolve(parse(["resolve", "folder", "-o", "out", *words]))
    assert seen[name] == value


def test_one_cache_may_be_kept_otherwise() -> None:
    stated = parse(
        ["compile", "m.onnx", "-o", "out", "--kv-cache", "past.0.key=int4", "--kv-cache", "past.0.value=int8"]
    )
    assert commands._stated(stated) == {"kv_cache": {"past.0.key": "int4", "past.0.value": "int8"}}


def test_numbers_that_json_has_none_for_are_null() -> None:
    document = json.loads(commands.document("compare", {"a": [float("nan"), {"b": -float("inf")}], "c": 1.5}))
    assert document == {"schema": commands.SCHEMA, "command": "compare", "a": [None, {"b": None}], "c": 1.5}
