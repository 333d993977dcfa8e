"""Every preset does what its models need, on a small example, and is taken wherever an object is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

import ptqc
from ptqc import presets
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import InputSpec
from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import Detector

COLOUR = (200, 100, 50)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
# Of an image of one colour, its channels as the model takes them.
CHANNELS: Mapping[str, Any] = {
    "imagenet": (np.array(COLOUR) / 255 - MEAN) / STD,
    "keras": np.array(COLOUR) / 127.5 - 1,
    "tf": np.array(COLOUR) / 127.5 - 1,
    "caffe": np.array(COLOUR)[::-1] - [103.939, 116.779, 123.68],
    "yolo": np.array(COLOUR) / 255,
    "yolox": np.array(COLOUR)[::-1],
}
# What a letterbox leaves free of a wide image in a square input.
FREE = {"yolo": ([0, -1], 114 / 255), "yolox": ([-1], 114.0)}


def test_types_name_every_preset() -> None:
    assert get_args(presets.PreprocessingName) == tuple(presets.PREPROCESSING)
    assert get_args(presets.DetectorName) == tuple(presets.DETECTORS)


@pytest.mark.parametrize("name", presets.PREPROCESSING)
def test_images(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (80, 40), COLOUR).save(tmp_path / "a.png")
    side = 224 if name == "imagenet" else 64
    preprocessing = Preprocessing.of(name)
    assert preprocessing is not None
    (image,) = preprocessing.load(tmp_path / "a.png", InputSpec("x", np.dtype(np.float32), (1, 3, side, side)))
    assert image.shape == (3, side, side)
    row = 4 if name == "yolox" else side // 2
    np.testing.assert_allclose(image[:, row, side // 2], CHANNELS[name], rtol=1e-5)
    rows, value = FREE.get(name, ([0, -1], None))
    for free in rows:
        np.testing.assert_allclose(image[:, free, side // 2], CHANNELS[name] if value is None else value, rtol=1e-5)


SIZE = (64, 64)
BOX, SCORE = np.array([16.0, 8.0, 48.0, 40.0]), 0.8  # of class 1; other rows hold nothing
CENTRED = np.array([32.0, 24.0, 32.0, 32.0])


def rows(count: int, place: int, box: np.ndarray, scores: list[float], nothing: list[float]) -> np.ndarray:
    result = np.tile(np.array([1.0, 1.0, 1.0, 1.0, *nothing]), (count, 1))
    result[place] = [*box, *scores]
    return result


def yolov5(_: Path) -> dict[str, np.ndarray]:
    return {"output": rows(84, 3, CENTRED, [1.0, 0.0, SCORE], [0.0, 0.0, 0.0])[None]}


def yolov8(_: Path) -> dict[str, np.ndarray]:
    return {"output0": rows(84, 3, CENTRED, [0.0, SCORE], [0.0, 0.0]).T[None]}


def yolox(_: Path) -> dict[str, np.ndarray]:
    box = np.array([0.0, 0.0, np.log(4.0), np.log(4.0)])  # of the cell in column 4 and row 3, of 8 pixels
    return {"output": rows(84, 3 * 8 + 4, box, [1.0, 0.0, SCORE], [0.0, 0.0, 0.0])[None]}


def ssd(folder: Path) -> dict[str, np.ndarray]:
    anchors = np.tile([0.5, 0.5, 0.5, 0.5], (6, 1))
    np.save(folder / "anchors.npy", anchors)
    offsets = np.zeros((6, 4))
    offsets[2] = [0.0, (CENTRED[1] / 64 - 0.5) / 0.5 / 0.1, 0.0, 0.0]
    logits = np.tile([9.0, -9.0, -9.0], (6, 1))
    logits[2] = np.log([0.1, 0.1, SCORE])
    return {"locations": offsets[None], "confidences": logits[None]}


def detr(_: Path) -> dict[str, np.ndarray]:
    logits = np.tile([-9.0, -9.0, 9.0], (6, 1))  # the last one is no object
    logits[2] = np.log([0.1, SCORE, 0.1])
    return {"logits": logits[None], "pred_boxes": np.tile(CENTRED / 64, (6, 1))[None]}


def tensorflow(_: Path) -> dict[str, np.ndarray]:
    boxes = BOX[[1, 0, 3, 2]] / 64
    return {
        "detection_boxes": boxes[None, None],
        "detection_classes": np.array([[2.0]]),
        "detection_scores": np.array([[SCORE]]),
        "num_detections": np.array([1.0]),
    }


def torchvision(_: Path) -> dict[str, np.ndarray]:
    return {"boxes": BOX[None], "labels": np.array([2]), "scores": np.array([SCORE])}


MODELS: Mapping[str, Callable[[Path], dict[str, np.ndarray]]] = {
    one.__name__: one for one in (yolov5, yolov8, yolox, ssd, detr, tensorflow, torchvision)
}


@pytest.mark.parametrize("name", presets.DETECTORS)
def test_detectors(name: str, tmp_path: Path) -> None:
    outputs = MODELS[name](tmp_path)
    preset = presets.DETECTORS[name]
    options: dict[str, Any] = {"anchors": str(tmp_path / "anchors.npy")} if preset.needs else {}
    result = Detector(**preset.fields, **options).decode(outputs, SIZE)
    best = [
        (box, score) for box, score, label in zip(result.boxes, result.scores, result.labels, strict=True) if label == 1
    ]
    np.testing.assert_allclose(best[0][0], BOX, atol=1e-6)
    assert best[0][1] == pytest.approx(SCORE)


def test_a_name_stands_for_an_object() -> None:
    assert Detector.of("yolov8") == Detector(boxes="cxcywh", box_unit="pixels", columns=("box", "classes"))
    assert Preprocessing.of("tf") == Preprocessing(scale=127.5, mean=1.0)
    own = Preprocessing(resize=8)
    assert (Preprocessing.of(own), Preprocessing.of(None), Detector.of(None)) == (own, None, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Preprocessing.of("imagnet"),
            r"imagnet \(did you mean imagenet\?\); known: imagenet, keras, .*from_file",
        ),
        (lambda: Preprocessing.of(3), "preprocessing is 3; give a Preprocessing"),
        (lambda: Detector.of("yolov9"), r"detector preset yolov9 \(did you mean yolov8\?\); known: yolov5"),
        (lambda: Detector.of("ssd"), "needs anchors"),
        (lambda: Detector.of([]), "detector is .*; give a Detector"),
        (
            lambda: ptqc.compile("m.onnx", calibration="x.npz", output="o", preprocessing="kera"),  # type: ignore[arg-type]
            r"did you mean keras\?",
        ),
        (
            lambda: ptqc.compile("m.onnx", calibration="x.npz", output="o", detector="det"),  # type: ignore[arg-type]
            r"did you mean detr\?",
        ),
    ],
)
def test_unknown_names(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        call()
