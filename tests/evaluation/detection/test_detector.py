"""A detector's outputs are read however they are written; what is not said or does not fit is refused with a remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import Detections, Detector

SIZE = (100, 50)
PLACES = 9
CORNERS = np.array(
    [[10.0, 5.0, 30.0, 25.0], [11.0, 5.0, 31.0, 25.0], [60.0, 10.0, 90.0, 40.0], *[[0.0, 0.0, 9.0, 9.0]] * 6]
)
# Of two classes; the first two are one object, and the others are nothing.
SCORES = np.array([[0.9, 0.0], [0.8, 0.0], [0.0, 0.7], *[[0.0, 0.0]] * 6])
WANTED = [(0, 0.9, CORNERS[0]), (1, 0.7, CORNERS[2])]
SHARES = CORNERS / [100, 50, 100, 50]
ONES = np.ones((PLACES, 1))
LOGITS = np.log(np.clip(SCORES, 1e-6, 1) / (1 - np.clip(SCORES, 1e-6, 1)))
BACKGROUND = np.c_[1 - SCORES.sum(1), SCORES]
CHOSEN = np.array([0, 2])
YXYX = SHARES[:, [1, 0, 3, 2]]
PIXELS: dict[str, Any] = {"boxes": "xyxy", "box_unit": "pixels"}
ROWS = np.c_[CORNERS[CHOSEN], [0.9, 0.7], [0, 1]]
WAYS: dict[str, tuple[Detector, dict[str, np.ndarray]]] = {
    "two outputs": (Detector(**PIXELS), {"boxes": CORNERS[None], "scores": SCORES[None]}),
    "channels first": (Detector(**PIXELS), {"boxes": CORNERS.T[None], "scores": SCORES.T[None]}),
    "shares": (Detector(boxes="xyxy", box_unit="shares"), {"boxes": SHARES[None], "scores": SCORES[None]}),
    "rows before columns": (Detector(boxes="yxyx", box_unit="shares"), {"boxes": YXYX[None], "scores": SCORES[None]}),
    "logits": (Detector(**PIXELS, scores="sigmoid"), {"loc": CORNERS[None], "conf": LOGITS[None]}),
    "a softmax with the background": (
        Detector(**PIXELS, scores="softmax", classes="from-1"),
        {"loc": CORNERS[None], "conf": np.log(np.clip(BACKGROUND, 1e-9, 1))[None]},
    ),
    "an axis in the middle": (Detector(**PIXELS), {"boxes": CORNERS[None, :, None], "confs": SCORES[None]}),
    "one output": (
        Detector(**PIXELS, columns=("box", "objectness", "classes")),
        {"out": np.c_[CORNERS, 0.95 * ONES, SCORES / 0.95][None]},
    ),
    "one output, channels first": (
        Detector(**PIXELS, columns=("box", "classes")),
        {"out": np.c_[CORNERS, SCORES].T[None]},
    ),
    "rows of box, score and class": (Detector(**PIXELS, columns=("box", "score", "class")), {"out": ROWS[None]}),
    "rows with the number of the image": (
        Detector(**PIXELS, columns=("image", "box", "class", "score")),
        {"out": np.c_[[0, 0], ROWS[:, :4], ROWS[:, [5, 4]]]},
    ),
    "TensorFlow's names": (
        Detector(classes="from-1"),
        {
            "detection_boxes": YXYX[[0, 2, 2, 3]][None],
            "detection_classes": np.array([[1.0, 2.0, 2.0, 1.0]]),
            "detection_scores": np.array([[0.9, 0.7, 0.6, 0.5]]),
            "num_detections": np.array([2.0]),
        },
    ),
    "torchvision's names": (
        Detector(**PIXELS, classes="from-1"),
        {"boxes": CORNERS[CHOSEN], "labels": np.array([1, 2]), "scores": np.array([0.9, 0.7])},
    ),
    "what NonMaxSuppression chose": (
        Detector(**PIXELS),
        {
            "boxes": CORNERS[None],
            "scores": SCORES.T[None],
            "selected_indices": np.array([[0, 0, 0], [0, 1, 2], [0, 1, 4], [0, 1, 5]]),
        },
    ),
    "names that say nothing": (
        Detector(**PIXELS, outputs={"boxes": "a", "scores": "b"}),
        {"a": CORNERS[None], "b": np.c_[SCORES, ONES * 0, ONES * 0][None]},
    ),
}


def told(result: Detections) -> list[tuple[int, float, list[float]]]:
    rows = zip(result.labels, result.scores, result.boxes, strict=True)
    return [(int(label), float(score), box.tolist()) for label, score, box in rows]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_found_is_told_however_it_is_written(way: str) -> None:
    detector, outputs = WAYS[way]
    result = told(detector.decode({name: array.astype(np.float64) for name, array in outputs.items()}, SIZE))
    if way == "what NonMaxSuppression chose":
        result = told(detector.decode(outputs, SIZE))
    assert [label for label, *_ in result] == [label for label, *_ in WANTED]
    assert [score for _, score, _ in result] == pytest.approx([score for _, score, _ in WANTED], abs=1e-4)
    np.testing.assert_allclose([box for *_, box in result], [box for *_, box in WANTED])


def test_offsets_from_anchors(tmp_path: Path) -> None:
    anchors = np.array([[0.25, 0.3, 0.2, 0.4], [0.7, 0.5, 0.25, 0.5]])
    centres = (SHARES[CHOSEN, :2] + SHARES[CHOSEN, 2:]) / 2
    sizes = SHARES[CHOSEN, 2:] - SHARES[CHOSEN, :2]
    shift, ratio = (centres - anchors[:, :2]) / anchors[:, 2:] / 0.1, np.log(sizes / anchors[:, 2:]) / 0.2
    np.save(tmp_path / "anchors.npy", anchors)
    options: dict[str, Any] = {"box_unit": "shares", "anchors": str(tmp_path / "anchors.npy")}
    for form, order in (("offsets", [0, 1, 2, 3]), ("offsets-yx", [1, 0, 3, 2])):
        outputs = {"loc": np.c_[shift, ratio][None, :, order], "conf": SCORES[CHOSEN][None]}
        result = Detector(boxes=form, **options).decode(outputs, SIZE)  # type: ignore[arg-type]
        np.testing.assert_allclose(result.boxes, CORNERS[CHOSEN])
    (tmp_path / "text.npy").write_text("0.5 0.5 0.1 0.1")
    for name, message in (("text", "not an .npy file of numbers"), ("none", "cannot read the anchors")):
        with pytest.raises(UsageError, match=message):
            Detector(boxes="offsets", box_unit="shares", anchors=str(tmp_path / f"{name}.npy")).decode(outputs, SIZE)
    with pytest.raises(UsageError, match="3 boxes, and 2 anchors"):
        Detector(boxes="offsets", **options).decode({"loc": CORNERS[:3], "conf": SCORES[:3]}, SIZE)


def test_nothing_found_is_no_error() -> None:
    outputs = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "scores": np.zeros(0)}
    assert told(Detector(boxes="xyxy", box_unit="pixels").decode(outputs, SIZE)) == []


TWO = {"boxes": CORNERS[None], "scores": SCORES[None]}


@pytest.mark.parametrize(
    ("detector", "outputs", "message"),
    [
        (Detector(), TWO, "nothing says how the model writes boxes: give --detector"),
        (Detector(boxes="xyxy"), TWO, "give --box-unit pixels, or shares"),
        (Detector(**PIXELS), TWO | {"scores": LOGITS[None]}, "not probabilities yet: give --scores sigmoid"),
        (Detector(**PIXELS), {"out": np.c_[CORNERS, SCORES]}, "say what each box has with --columns"),
        (
            Detector(**PIXELS),
            {"a": CORNERS, "b": CORNERS},
            "do not show which has boxes: say so with --detector-outputs",
        ),
        (Detector(**PIXELS, outputs={"boxes": "c"}), TWO, "no output 'c'; its outputs: boxes float64"),
        (Detector(**PIXELS, columns=("box", "score", "class")), {"y": SCORES}, "does not have the columns"),
        (Detector(boxes="cells"), TWO, "9 boxes are those of no grid"),
    ],
)
def test_what_is_not_said_or_does_not_fit(detector: Detector, outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        detector.decode(outputs, SIZE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boxes": "xxyy"}, "boxes is 'xxyy'"),
        ({"box_unit": "px"}, "box_unit is 'px'"),
        ({"columns": "box,clases"}, "unknown column clases \\(did you mean classes\\?\\)"),
        ({"columns": "box,score"}, "expected a box with its classes"),
        ({"outputs": ["boxes"]}, "write ROLE=NAME"),
        ({"outputs": ["bocks=y"]}, "unknown role of an output bocks"),
        ({"boxes": "offsets"}, "needs anchors"),
        ({"boxes": "xyxy", "anchors": "a.npy"}, "has no anchors"),
        ({"boxes": "cells", "box_unit": "shares"}, "leave out the unit"),
        ({"overlap": "2"}, "overlap = 2.0"),
        ({"overlap": "much"}, "are numbers"),
        ({"variances": "0.1,0.2"}, "expected four positive numbers"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Detector.parse(options)


def test_it_is_kept_as_json() -> None:
    texts = {
        "boxes": "cxcywh",
        "columns": "box,classes",
        "variances": "1,1,1,1",
        "outputs": ["all=y"],
        "overlap": "0.5",
    }
    detector = Detector.parse(texts)
    assert Detector.from_json(detector.to_json()) == detector
    assert detector.columns == ("box", "classes")


def test_what_is_stated_replaces_only_that() -> None:
    kept = Detector(boxes="cxcywh", box_unit="pixels", outputs={"boxes": "a", "scores": "b"})
    assert Detector.parse({"classes": "ids"}, kept) == Detector(
        boxes="cxcywh", box_unit="pixels", outputs={"boxes": "a", "scores": "b"}, classes="ids"
    )
