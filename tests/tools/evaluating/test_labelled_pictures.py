"""Labels of pictures as YOLO and COCO write them, as boxes in the model's input; what is wrong with them is named."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ptqc.calibration.images import Fit, Preprocessing
from ptqc.calibration.inputs import InputSpec
from ptqc.errors import CalibrationError
from ptqc.evaluation.detection.pictures import labelled_pictures
from ptqc.evaluation.detection.precision import Truth

INPUT = InputSpec("x", np.dtype(np.float32), (1, 3, 32, 32))
BOX = [8.0, 4.0, 16.0, 12.0]  # left, top, right, bottom in a picture of 40 x 20
LINE = "2 0.3 0.4 0.2 0.4\n"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two pictures of 40 x 20, of which the first has a label as YOLO writes it."""
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "labels").mkdir()
    for name in "ab":
        Image.new("RGB", (40, 20)).save(folder / f"{name}.png")
    (tmp_path / "labels" / "a.txt").write_text(LINE)
    return folder


def truths(data: Path, labels: object = None, fit: Fit = "letterbox", numbers: str = "from-0") -> list[Truth]:
    _, result = labelled_pictures(data, labels, numbers, [INPUT], None, Preprocessing(fit=fit))  # type: ignore[arg-type]
    return [one.truth for one in result]


@pytest.mark.parametrize(
    ("fit", "wanted"),
    [
        ("letterbox", [6.4, 11.2, 12.8, 17.6]),
        ("letterbox-corner", [6.4, 3.2, 12.8, 9.6]),
        ("stretch", [6.4, 6.4, 12.8, 19.2]),
    ],
)
def test_boxes_move_with_the_picture(images: Path, fit: Fit, wanted: list[float]) -> None:
    first, second = truths(images, fit=fit)
    np.testing.assert_allclose(first.boxes, [wanted])
    assert first.labels.tolist() == [2]
    assert first.size == (32, 32)
    assert not len(second.boxes)


def test_a_strip_lies_in_a_letterbox(images: Path) -> None:
    Image.new("RGB", (2000, 1)).save(images / "a.png")
    np.testing.assert_allclose(truths(images)[0].boxes, [[6.4, 16.2, 12.8, 16.6]])


def test_whatever_reading_a_picture_raises_names_it(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> np.ndarray:
        raise MemoryError("no room")

    monkeypatch.setattr(Preprocessing, "load", load)
    with pytest.raises(CalibrationError, match=r"reading .*a\.png raised MemoryError: no room"):
        truths(images)


def test_labels_may_lie_beside_the_pictures_or_in_a_folder_that_is_given(images: Path, tmp_path: Path) -> None:
    expected = truths(images)
    (tmp_path / "labels").rename(tmp_path / "other")
    np.testing.assert_equal(truths(images, tmp_path / "other")[0].boxes, expected[0].boxes)
    (tmp_path / "other" / "a.txt").rename(images / "a.txt")
    np.testing.assert_equal(truths(images)[0].boxes, expected[0].boxes)


def coco(path: Path, **more: object) -> Path:
    size = {"width": 40, "height": 20}
    path.write_text(
        json.dumps(
            {
                "images": [{"id": 7, "file_name": "a.png", **size}, {"id": 8, "file_name": "b.png", **size}],
                "annotations": [{"image_id": 7, "category_id": 18, "bbox": [8, 4, 8, 8], "iscrowd": 1}],
                "categories": [{"id": 18}, {"id": 3}],
                **more,
            }
        )
    )
    return path


def test_a_coco_file_numbers_classes_by_place_or_by_id(images: Path, tmp_path: Path) -> None:
    path = coco(tmp_path / "instances.json")
    by_place, by_id = (truths(images, path, numbers=numbers)[0] for numbers in ("from-0", "ids"))
    np.testing.assert_allclose(by_place.boxes, [[6.4, 11.2, 12.8, 17.6]])
    assert by_place.crowd.tolist() == [True]
    assert (by_place.labels.tolist(), by_id.labels.tolist()) == ([1], [18])


def test_pictures_that_a_coco_file_does_not_name_are_left_out(images: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 20)).save(images / "c.png")
    count, result = labelled_pictures(
        images, coco(tmp_path / "c.json"), "from-0", [INPUT], 1, Preprocessing(fit="stretch")
    )
    assert count == 1
    assert [one.name for one in result] == ["a.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat 0.1 0.1 0.1 0.1", "a.txt, line 1: 'cat 0.1 0.1 0.1 0.1' is not `class centre-x"),
        ("1 0.1 0.1 0.1", "line 1: .* is not `class centre-x"),
        ("\n1 30 40 10 10", "line 2: .* is not a class and a box in fractions of the image"),
        ("-1 0.1 0.1 0.1 0.1", "line 1: .* is not a class and a box in fractions of the image"),
        (f"{2**63} 0.1 0.1 0.1 0.1", "line 1: .* is not a class and a box in fractions of the image"),
    ],
)
def test_a_line_that_is_no_label_is_named(images: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels" / "a.txt").write_text(text)
    with pytest.raises(CalibrationError, match=message):
        truths(images)


def boxed(*box: float) -> dict[str, object]:
    return {"annotations": [{"image_id": 7, "category_id": 18, "bbox": box}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 7, "file_name": "a.png", "width": 0, "height": 20}]}, "a.png has 0 x 20 pixels"),
        ({"images": [{"id": 7, "file_name": "a.png", "width": float("nan"), "height": 20}]}, "a.png has nan x 20 "),
        (boxed(8, 4, float("nan"), 8), "a.png has a box .*, expected .left, top, width, height"),
        (boxed(8, 4, -8, 8), "a.png has a box .8, 4, -8, 8., expected .left, top, width, height"),
        (boxed(8, 4, 8), "ValueError: not enough values"),
        (boxed(10**400, 4, 8, 8), "OverflowError"),
    ],
)
def test_a_coco_file_with_an_impossible_box_is_refused(
    images: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CalibrationError, match=f"is not a COCO file .*{message}"):
        truths(images, coco(tmp_path / "c.json", **changes))


def test_a_coco_file_of_endless_lists_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("[" * 100_000)
    with pytest.raises(CalibrationError, match=r"is not a COCO file .*RecursionError"):
        truths(images, tmp_path / "c.json")


def test_what_cannot_be_evaluated_says_what_to_give(images: Path, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"only a part of a\.png.*--fit letterbox"):
        truths(images, fit="crop")
    with pytest.raises(CalibrationError, match=r"there is no folder .*imges; .* needs a folder of images"):
        truths(tmp_path / "imges")
    with pytest.raises(CalibrationError, match=r"data is \[1\]; .* needs a folder of images"):
        truths([1])  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="holds no images"):
        truths(tmp_path / "labels")
    with pytest.raises(CalibrationError, match="do not exist; give a folder of text files, or a COCO file"):
        truths(images, tmp_path / "nothing")
    with pytest.raises(CalibrationError, match="those of a COCO file: give it with --labels"):
        truths(images, numbers="ids")
    with pytest.raises(CalibrationError, match="is not a COCO file"):
        truths(images, coco(tmp_path / "c.json", categories=None))
    with pytest.raises(CalibrationError, match="names none of the images"):
        truths(images, coco(tmp_path / "c.json", images=[]))
    (tmp_path / "labels" / "a.txt").unlink()
    with pytest.raises(CalibrationError, match=r"have no labels: .*labels/a\.txt"):
        truths(images)
