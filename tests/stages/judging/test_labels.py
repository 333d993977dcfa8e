"""Labelled samples: what is read, what is refused by name, and the accuracy that comes of it."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse
from PIL import Image

from ptqc.calibration.images import Preprocessing
from ptqc.errors import CalibrationError
from ptqc.stages.judging.labels import predicted, read_labels
from ptqc.store.npz import write_npz


@pytest.fixture
def classifier() -> ir.Model:
    """The scores are the inputs."""
    return parse("g (float[N,3] x) => (float[N,3] y) { y = Identity(x) }")


@pytest.fixture
def of_images() -> ir.Model:
    return parse("g (float[N,3,4,4] x) => (float[N,3,1,1] y) { y = GlobalAveragePool(x) }")


def scores(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": feeds["x"].reshape(1, 3, -1).mean(-1)}


def test_top1_is_the_share_of_hits(classifier: ir.Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(3, dtype=np.float32)[[0, 1, 2, 2]], labels=np.array([0, 1, 2, 0]))
    found = read_labels(classifier, tmp_path / "a.npz", tmp_path / "spool", None)
    assert found.top1(scores) == 75.0
    assert found.labels.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("heading", ["", "image,class\n", "image,class\n\n", "\ufeff"])
def test_a_csv_names_images_relative_to_itself(of_images: ir.Model, tmp_path: Path, heading: str) -> None:
    (tmp_path / "images").mkdir()
    for number, color in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        Image.new("RGB", (4, 4), color).save(tmp_path / "images" / f"{number}.png")
    rows = "images/0.png,0\nimages/1.png, 1\nimages/2.png,1,of three columns\n"
    (tmp_path / "a.csv").write_text(heading + rows, encoding="utf-8")
    found = read_labels(of_images, tmp_path / "a.csv", tmp_path / "spool", Preprocessing())
    assert found.labels.tolist() == [0, 1, 1]
    assert found.top1(scores) == pytest.approx(200 / 3)


def test_a_first_line_that_names_an_image_is_no_heading(of_images: ir.Model, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "0.png")
    (tmp_path / "a.csv").write_text("0.png,O\n0.png,1\n", encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"line 1: \['0.png', 'O'\] is not `image,class number`"):
        read_labels(of_images, tmp_path / "a.csv", tmp_path / "spool", Preprocessing())


X = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"has no array `labels` of one integer per sample; it has \['x'\]"),
        ({"x": X, "labels": np.ones(3)}, "has no array `labels` of one integer"),
        ({"x": X, "labels": np.ones((3, 1), int)}, "has no array `labels` of one integer"),
        ({"x": X, "labels": np.arange(2)}, "3 samples and 2 labels"),
        ({"x": X[:, :2], "labels": np.arange(3)}, r"sample 0, input 'x': has shape \(1, 2\)"),
        ({"z": X, "labels": np.arange(3)}, r"holds arrays \['z'\], expected the model's inputs \['x'\]"),
    ],
)
def test_archives_that_do_not_fit_are_refused(
    classifier: ir.Model, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    write_npz(tmp_path / "a.npz", arrays)
    with pytest.raises(CalibrationError, match=message):
        read_labels(classifier, tmp_path / "a.npz", tmp_path / "spool", None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"PK\x03\x04junk", r"cannot read the labels .*a\.npz"),
        ("a.npz", b"", r"cannot read the labels .*a\.npz"),
        ("a.csv", b"", r"a\.csv has no line `image,class number`"),
        ("a.csv", b"\xff\xfe", r"cannot read the labels .*a\.csv"),
        ("a.csv", b"1.png,0\n2.png,cat\n", r"a\.csv, line 2: \['2\.png', 'cat'\] is not"),
        ("a.csv", b"1.png,0\n2.png\n", r"a\.csv, line 2"),
        ("a.csv", b"1.png,-1\n2.png,-1\n", r"a\.csv, line 2"),
        ("a.csv", b"gone.png,0\n", r"names gone\.png, and there is no .*give paths relative to the CSV"),
    ],
)
def test_damaged_files_are_refused(
    of_images: ir.Model, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CalibrationError, match=message):
        read_labels(of_images, tmp_path / name, tmp_path / "spool", None)


def test_a_missing_file_says_what_is_accepted(classifier: ir.Model, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"do not exist; give an \.npz with `labels` or a CSV of image,class"):
        read_labels(classifier, tmp_path / "none.csv", tmp_path / "spool", None)


def test_a_csv_needs_a_model_with_one_input(tmp_path: Path) -> None:
    two = parse("g (float[N,3] a, float[N,3] b) => (float[N,3] y) { y = Add(a, b) }")
    (tmp_path / "a.csv").write_text("1.png,0\n")
    with pytest.raises(CalibrationError, match=r"this one has 2: give an \.npz"):
        read_labels(two, tmp_path / "a.csv", tmp_path / "spool", None)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"label": np.array([7]), "scores": np.array([[0.1, 0.7, 0.2]], np.float32)}, 1),
        ({"label": np.array(["cat"]), "scores": np.array([[0.1, 0.2, 0.7]], np.float32)}, 2),
        ({"label": np.array([7]), "scores": [{0: 0.4, 7: 0.6}]}, 7),
        ({"scores": np.array([[3, 9, 4]], np.int64)}, 1),
    ],
)
def test_the_class_is_found_among_the_outputs(outputs: dict[str, object], expected: int) -> None:
    assert predicted(outputs) == expected
