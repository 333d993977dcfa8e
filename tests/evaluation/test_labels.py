"""Labelled samples: what is read, what is refused by name, and the accuracy that comes of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from compiling import compiled, proto, weight
from graphs import parse
from PIL import Image

import ptqc
from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.errors import CalibrationError, UsageError
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.labels import (
    AnyLabels,
    LabelledClasses,
    LabelledObjects,
    LabelSource,
    labels_of,
    predicted,
    read_labels,
)
from ptqc.execution.onnxruntime import Runner
from ptqc.passes.allocate.constraints.criteria import LabelledDrop, most_of
from ptqc.utils.store import write_npz


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
    result = read_labels(classifier, tmp_path / "a.npz", tmp_path / "spool", None)
    assert result.score(scores) == 75.0
    assert isinstance(result, LabelledClasses)
    assert result.labels.tolist() == [0, 1, 2, 0]


CLASSES = np.array([0, 1, 2, 0])
ROWS = np.eye(3, dtype=np.float32)[[0, 1, 2, 2]]


@pytest.mark.parametrize(
    "labels",
    [
        {"x": ROWS, "labels": CLASSES},
        [(ROWS[:3], CLASSES[:3]), (ROWS[3:], CLASSES[3:])],
        [{"x": ROWS[:2], "labels": CLASSES[:2]}, {"x": ROWS[2:], "labels": CLASSES[2:]}],
        [(row[np.newaxis], int(number)) for row, number in zip(ROWS, CLASSES, strict=True)],
    ],
    ids=["arrays", "batches", "batches of dicts", "samples"],
)
def test_labelled_samples_in_memory_score_as_those_of_a_file(
    classifier: ir.Model, tmp_path: Path, labels: LabelSource
) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, labels=CLASSES)
    wanted = read_labels(classifier, tmp_path / "a.npz", tmp_path / "of a file", None)
    result = read_labels(classifier, labels_of(labels), tmp_path / "spool", None)
    assert isinstance(result, LabelledClasses)
    assert result.labels.tolist() == CLASSES.tolist()
    assert result.samples.digest == wanted.samples.digest
    assert result.score(scores) == wanted.score(scores) == 75.0


def test_a_loader_that_fills_one_array_again_keeps_its_classes(classifier: ir.Model, tmp_path: Path) -> None:
    row, number = np.empty((1, 3), np.float32), np.empty((), int)

    def loader() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row[0], number[...] in zip(ROWS, CLASSES, strict=True):
            yield row, number

    result = read_labels(classifier, loader(), tmp_path / "spool", None)
    assert isinstance(result, LabelledClasses)
    assert result.labels.tolist() == CLASSES.tolist()


@pytest.mark.parametrize("labels", [CLASSES, CLASSES.tolist(), ROWS, 5])
def test_class_numbers_without_samples_are_refused(labels: AnyLabels, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which holds no samples; give the samples with their class numbers"):
        ptqc.compile("m.onnx", calibration=ROWS, output=tmp_path / "out", labels=labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"x": ROWS, "labels": CLASSES[:3]}, "labels has 4 samples and 3 labels; give one label per sample"),
        ({"x": ROWS}, r"labels has no array `labels` of one integer per sample; it has \['x'\]"),
        ([{"x": ROWS[:1]}, {"x": ROWS[1:2]}], "labels holds 2 samples and 0 class numbers; give one with each sample"),
        ([(ROWS[:1], CLASSES[:2])], "labels holds 1 samples and 2 class numbers"),
    ],
)
def test_samples_in_memory_have_a_class_each(
    classifier: ir.Model, tmp_path: Path, labels: LabelSource, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        read_labels(classifier, labels, tmp_path / "spool", None)


@pytest.mark.parametrize("heading", ["", "image,class\n", "image,class\n\n", "\ufeff"])
def test_a_csv_names_images_relative_to_itself(of_images: ir.Model, tmp_path: Path, heading: str) -> None:
    (tmp_path / "images").mkdir()
    for number, color in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        Image.new("RGB", (4, 4), color).save(tmp_path / "images" / f"{number}.png")
    rows = "images/0.png,0\nimages/1.png, 1\nimages/2.png,1,of three columns\n"
    (tmp_path / "a.csv").write_text(heading + rows, encoding="utf-8")
    result = read_labels(of_images, tmp_path / "a.csv", tmp_path / "spool", Preprocessing())
    assert isinstance(result, LabelledClasses)
    assert result.labels.tolist() == [0, 1, 1]
    assert result.score(scores) == pytest.approx(200 / 3)


def test_a_csv_may_name_images_in_the_folder_of_the_data(of_images: ir.Model, tmp_path: Path) -> None:
    places = [tmp_path / "labels", tmp_path / "images" / "a"]
    for place, color in zip(places, ((255, 0, 0), (0, 255, 0)), strict=True):
        place.mkdir(parents=True)
        Image.new("RGB", (4, 4), color).save(place / f"{place.name}.png")
    table, images = tmp_path / "labels" / "a.csv", tmp_path / "images"
    table.write_text("labels.png,0\na/a.png,1\n", encoding="utf-8")
    result = read_labels(of_images, table, tmp_path / "spool", Preprocessing(), images=images)
    assert result.score(scores) == 100
    onnx.save(ir.to_proto(of_images), tmp_path / "m.onnx")
    scored = ptqc.evaluate(
        tmp_path / "m.onnx", metric="top-1", data=images, labels=table, preprocessing=Preprocessing()
    )
    assert (scored.models[0].score.value, scored.cases) == (100, 2)
    table.write_text("labels.png,0\nb.png,1\n", encoding="utf-8")
    text = rf"names b\.png, and there is no {table.parent / 'b.png'} nor {images / 'b.png'}: give paths relative to"
    with pytest.raises(CalibrationError, match=f"{text} the CSV or to the folder of images"):
        read_labels(of_images, table, tmp_path / "spool", Preprocessing(), images=images)


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
        (
            {"x": X, "labels": np.ones((3, 1), int)},
            r"`labels` has shape \(3, 1\), expected one class number.*`evaluate`",
        ),
        ({"x": X, "labels": np.arange(2)}, "3 samples and 2 labels"),
        ({"x": X[:, :2], "labels": np.arange(3)}, r"samples\[0\], input 'x': has shape \(1, 2\)"),
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
        ("a.npz", b"PK\x03\x04junk", r"a\.npz is not a readable \.npz archive"),
        ("a.npz", b"", r"a\.npz is not a readable \.npz archive"),
        ("a.csv", b"", r"a\.csv has no line `image,class number`"),
        ("a.csv", b"\xff\xfe", r"cannot read the labels .*a\.csv"),
        ("a.csv", b"1.png,0\n2.png,cat\n", r"a\.csv, line 2: \['2\.png', 'cat'\] is not"),
        ("a.csv", b"1.png,0\n2.png\n", r"a\.csv, line 2"),
        ("a.csv", b"1.png,-1\n2.png,-1\n", r"a\.csv, line 2"),
        ("a.csv", b"gone.png,\x1f1\n", r"names gone"),  # white space for str.strip, and none for int
        ("a.csv", b"1.png,0\n2.png," + b"9" * 5000, r"a\.csv, line 2"),
        ("a.csv", b"x" * 300 + b",0\n", r"names x+, and there is no"),
        ("a.csv", b"a\0.png,0\n", r"names a.\.png, and there is no"),
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
    with pytest.raises(CalibrationError, match=r"do not exist; give an \.npz with `labels`, a CSV of image,class"):
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


# A place for each of four quarters of the image, whose score is its brightness.
OF_QUARTERS = """g (float[1,3,32,32] x) => (float[1,4,4] boxes, float[1,4,1] scores) {
    bright = AveragePool <kernel_shape = [16, 16], strides = [16, 16]> (x)
    grey = ReduceMean <axes = [1], keepdims = 0> (bright)
    scores = Reshape(grey, shape)
    nothing = Mul(scores, zero)
    boxes = Add(corners, nothing)
}"""
QUARTERS = np.array([[[0, 0, 16, 16], [16, 0, 32, 16], [0, 16, 16, 32], [16, 16, 32, 32]]], np.float32)
SHARES = [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)]
IN_PIXELS = Detector(boxes="xyxy", box_unit="pixels")


@pytest.fixture
def of_quarters() -> ir.Model:
    return ir.from_proto(
        proto(OF_QUARTERS, 17, corners=QUARTERS, zero=np.zeros((), np.float32), shape=np.array([1, 4, 1]))
    )


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eight pictures with a bright quarter, which is an object; of every fourth the label is another quarter."""
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for number in range(8):
        pixels, (x, y) = np.zeros((32, 32, 3), np.uint8), SHARES[number % 4]
        pixels[int(32 * y) - 8 :, int(32 * x) - 8 :][:16, :16] = 255
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
        x, y = SHARES[(number + (number % 4 == 3)) % 4]
        (tmp_path / "labels" / f"{number}.txt").write_text(f"0 {x} {y} 0.5 0.5")
    return tmp_path / "images"


def labelled(model: ir.Model, path: Path, spool: Path) -> LabelledObjects:
    result = read_labels(model, path, spool, Preprocessing(fit="stretch"), IN_PIXELS)
    assert isinstance(result, LabelledObjects)
    return result


def test_pictures_with_boxes_give_the_score_that_evaluate_gives(
    of_quarters: ir.Model, pictures: Path, tmp_path: Path
) -> None:
    result = labelled(of_quarters, pictures, tmp_path / "spool")
    path = tmp_path / "m.onnx"
    ir.save(of_quarters, path)
    stretched = Preprocessing(fit="stretch")
    (row,) = ptqc.evaluate(path, metric="map", data=pictures, preprocessing=stretched, detector=IN_PIXELS).models
    score = result.score(Runner(of_quarters).run)
    assert score == pytest.approx(row.score.value)
    assert 50 < score < 100


@pytest.mark.usefixtures("pictures")
def test_a_coco_file_names_images_below_its_folder(of_quarters: ir.Model, tmp_path: Path) -> None:
    boxes = [[32 * x - 8, 32 * y - 8, 16, 16] for x, y in SHARES]
    document = {
        "images": [{"id": i, "file_name": f"images/{i}.png", "width": 32, "height": 32} for i in range(4)],
        "annotations": [{"image_id": i, "category_id": 7, "bbox": box} for i, box in enumerate(boxes)],
        "categories": [{"id": 7, "name": "bright"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(document))
    result = labelled(of_quarters, tmp_path / "coco.json", tmp_path / "spool")
    assert len(result.samples) == 4
    assert result.score(Runner(of_quarters).run) == pytest.approx(100)


def test_a_detector_loses_points_of_its_mean_average_precision(
    of_quarters: ir.Model, pictures: Path, tmp_path: Path
) -> None:
    """A file that finds nothing loses all that there was, the same file nothing."""
    result = labelled(of_quarters, pictures, tmp_path / "spool")
    criterion = LabelledDrop(1.0, "%drop", of_quarters, result)
    same, blind = ir.to_proto(of_quarters), of_quarters.clone()
    blind.graph.initializers["corners"].const_value = ir.tensor(QUARTERS + 100, name="corners")
    nothing = criterion.judged(same)
    assert (nothing.value, nothing.samples, criterion.judges) == (0, 4, 4)
    assert nothing.bound == pytest.approx(100 * most_of(0, 4))  # four pictures of which none changed
    real = result.every_second(1).score(Runner(of_quarters).run)
    lost = criterion.judged(ir.to_proto(blind))
    assert lost.value == pytest.approx(real)
    assert lost.bound >= lost.value


def test_of_copies_one_has_a_label(tmp_path: Path) -> None:
    """Each image twice, side by side: one would choose, and the other judge."""
    data = np.random.default_rng(0).random((5, 8), np.float32).repeat(2, axis=0)
    model = parse("g (float[N,8] x) => (float[N,4] y) { y = MatMul(x, w) }", w=np.ones((8, 4), np.float32))
    result = read_labels(model, {"x": data, "labels": np.arange(10) // 2}, tmp_path / "labelled", None).distinct
    assert isinstance(result, LabelledClasses)
    assert result.labels.tolist() == [0, 1, 2, 3, 4]
    assert [record.number for record in result.samples.records] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(("missing", "use"), [(0, "choose"), (1, "judge")])
def test_a_half_without_objects_is_refused(
    missing: int, use: str, of_quarters: ir.Model, pictures: Path, tmp_path: Path
) -> None:
    result = labelled(of_quarters, pictures, tmp_path / "spool")
    assert isinstance(result, LabelledObjects)
    nothing = (
        replace(truth, boxes=truth.boxes[:0], labels=truth.labels[:0], crowd=truth.crowd[:0]) for truth in result.truths
    )
    truths = tuple(
        none if place % 2 == missing else truth
        for place, (none, truth) in enumerate(zip(nothing, result.truths, strict=True))
    )
    with pytest.raises(CalibrationError, match=f"4 labelled samples that {use} hold nothing that is scored"):
        _ = LabelledDrop(1.0, "%drop", of_quarters, replace(result, truths=truths))._real


def test_judges_that_weights_were_fitted_to_are_counted(tmp_path: Path) -> None:
    """Of ten labelled samples the first four are calibration samples, and every second one judges."""
    data = np.random.default_rng(0).random((10, 8), np.float32)
    model = parse("g (float[N,8] x) => (float[N,4] y) { y = MatMul(x, w) }", w=np.ones((8, 4), np.float32))
    result = read_labels(model, {"x": data, "labels": np.zeros(10, np.int64)}, tmp_path / "labelled", None)
    drawn = collect(data[:4], input_specs(model), tmp_path / "read", 10).extended(
        tmp_path / "drawn", lambda feeds: {"drawn": 2 * feeds["x"]}
    )
    assert LabelledDrop(1.0, "%drop", model, result, drawn).measured_on == 2
    assert LabelledDrop(1.0, "%drop", model, result).measured_on == 0


def test_pictures_without_objects_are_refused(of_quarters: ir.Model, pictures: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "labels").iterdir():
        path.write_text("")
    with pytest.raises(CalibrationError, match="name no object in any of 8 images"):
        labelled(of_quarters, pictures, tmp_path / "spool")


# The same, but that layers say how bright a place is.
LEARNED = """g (float[N,3,32,32] x) => (float[N,4,4] boxes, float[N,4,1] scores) {
    seen = Conv <kernel_shape = [16, 16], strides = [16, 16]> (x, w1)
    kept = Relu(seen)
    grey = Conv <kernel_shape = [1, 1]> (kept, w2)
    sure = Sigmoid(grey)
    rows = Reshape(sure, shape)
    scores = Identity(rows)
    nothing = Mul(rows, zero)
    boxes = Add(corners, nothing)
}"""


@pytest.mark.slow
def test_a_drop_of_the_mean_average_precision_is_a_budget(pictures: Path, tmp_path: Path) -> None:
    """Of half of the pictures the one with a wrong label is missed by the float model, too."""
    layers = {"w1": weight(32, 3, 16, 16) + 0.02, "w2": np.abs(weight(1, 32, 1, 1))}
    constants = {"corners": QUARTERS, "zero": np.zeros((), np.float32), "shape": np.array([-1, 4, 1])}
    data = np.random.default_rng(0).random((32, 3, 32, 32), np.float32)
    result = compiled(
        proto(LEARNED, 17, **layers, **constants),
        data,
        tmp_path,
        "5%drop",
        labels=pictures,
        preprocessing=Preprocessing(fit="stretch"),
        detector=IN_PIXELS,
    )
    record, results = result.manifest["loss_budget"], result.manifest["results"]
    assert results["score_title"] == "mAP 50-95, %"
    assert 50 < results["float_score"] < 100
    assert (record["unit"], record["judged"]["samples"]) == ("%drop", 4)
    assert record["judged"]["lost"] <= 5
    assert f"mAP 50-95 {results['float_score']:.2f} % -> " in result.summary()
