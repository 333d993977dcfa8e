"""Mean intersection over union, against scikit-learn's, and as the score of labelled samples."""

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse
from PIL import Image
from sklearn.metrics import jaccard_score

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.cli.main import main
from ptqc.errors import CalibrationError
from ptqc.evaluation.labels import LabelledMasks, LabelSource, labels_of, read_labels
from ptqc.evaluation.masks import MaskFile, joined, mask_files, mean_iou, overlaps

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((6, 4, 5, 7))  # (pictures, classes, rows, columns)
MASKS = RNG.integers(0, 4, (6, 5, 7))


def iou(scores: np.ndarray, masks: np.ndarray) -> float:
    return mean_iou(joined([overlaps(answer[None], mask, "y") for answer, mask in zip(scores, masks, strict=True)]))


def wanted(scores: np.ndarray, masks: np.ndarray) -> float:
    """By scikit-learn, of the pixels that count."""
    truth, predicted = masks.reshape(-1), scores.argmax(1).reshape(-1)
    counted = (truth >= 0) & (truth != 255)
    return 100 * float(jaccard_score(truth[counted], predicted[counted], average="macro"))


def test_it_is_that_of_scikit_learn() -> None:
    assert iou(SCORES, MASKS) == pytest.approx(wanted(SCORES, MASKS))


@pytest.mark.parametrize("marked", [-1, 255])
def test_pixels_that_do_not_count(marked: int) -> None:
    masks = np.where(RNG.random(MASKS.shape) < 0.3, marked, MASKS)
    assert iou(SCORES, masks) == pytest.approx(wanted(SCORES, masks))


def test_a_class_that_nobody_has_is_left_out() -> None:
    scores, masks = SCORES.copy(), np.minimum(MASKS, 2)
    scores[:, 3] = -100
    assert iou(scores, masks) == pytest.approx(wanted(scores, masks))
    assert np.isnan(iou(scores, np.full_like(masks, -1)))


def test_classes_may_lie_last_or_be_the_answer() -> None:
    last = joined([overlaps(np.moveaxis(SCORES[:1], 1, -1), MASKS[0], "y")])
    numbers = joined([overlaps(SCORES[:1].argmax(1), MASKS[0], "y")])
    assert mean_iou(last) == mean_iou(numbers) == iou(SCORES[:1], MASKS[:1])


def test_pictures_with_different_numbers_of_classes_are_added_up() -> None:
    numbers = SCORES.argmax(1)
    numbers[0] = np.minimum(numbers[0], 1)
    masks = MASKS.copy()
    masks[0] = np.minimum(masks[0], 1)
    counts = [overlaps(answer, mask, "y") for answer, mask in zip(numbers, masks, strict=True)]
    assert counts[0].shape[1] < counts[1].shape[1]
    own = 100 * float(jaccard_score(masks.reshape(-1), numbers.reshape(-1), average="macro"))
    assert mean_iou(joined(counts)) == pytest.approx(own)


@pytest.mark.parametrize(
    ("answer", "mask", "message"),
    [
        (SCORES[:1], MASKS[0] + 1, "the label is class 4, but y has 4 classes"),
        (SCORES[:1], MASKS[0, :4], r"y has shape \(1, 4, 5, 7\), and the mask \(4, 7\)"),
        (SCORES[:1, :1], MASKS[0], "y has scores of one class: score the model by `evaluate`"),
        (SCORES[:1].argmax(1), MASKS[0, :4], r"y has shape \(1, 5, 7\), and the mask \(4, 7\)"),
        (SCORES[:1], MASKS[0] + 0.5, "the mask is of type float64, expected the numbers of classes"),
        (MASKS[:1], MASKS[0] + 10**12, r"y or the mask has class 100000000000\d, expected numbers from 0 to 65535"),
        (MASKS[:1] + 10**12, MASKS[0], r"y or the mask has class 100000000000\d, expected numbers from 0 to 65535"),
        (MASKS[:1] - 10, MASKS[0], "y or the mask has class -10, expected numbers from 0 to 65535"),
    ],
)
def test_what_does_not_fit_is_refused(answer: np.ndarray, mask: np.ndarray, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        overlaps(answer, mask, "y")


@pytest.fixture
def segmenter() -> ir.Model:
    """A network whose output is its input."""
    return parse("g (float[N,4,5,7] x) => (float[N,4,5,7] y) { y = Identity(x) }")


IMAGES = SCORES.astype(np.float32)


@pytest.mark.parametrize(
    "labels",
    [
        {"x": IMAGES, "labels": MASKS},
        [(IMAGES[:4], MASKS[:4]), (IMAGES[4:], MASKS[4:])],
        [{"x": IMAGES[:2], "labels": MASKS[:2]}, {"x": IMAGES[2:], "labels": MASKS[2:]}],
        list(zip(IMAGES, MASKS, strict=True)),
        [(image[None], mask) for image, mask in zip(IMAGES, MASKS, strict=True)],
    ],
    ids=["arrays", "batches", "batches of dicts", "pictures", "pictures as batches of one"],
)
def test_labelled_masks_score_a_model(segmenter: ir.Model, tmp_path: Path, labels: LabelSource) -> None:
    result = read_labels(segmenter, labels_of(labels), tmp_path, None)
    assert isinstance(result, LabelledMasks)
    assert result.score(lambda feeds: {"y": feeds["x"]}) == pytest.approx(wanted(SCORES, MASKS))
    assert result.every_second(1).score(lambda feeds: {"y": feeds["x"]}) == pytest.approx(
        wanted(SCORES[1::2], MASKS[1::2])
    )


def test_the_drop_is_that_of_all_pictures(segmenter: ir.Model, tmp_path: Path) -> None:
    labelled = read_labels(segmenter, {"x": IMAGES, "labels": MASKS}, tmp_path, None)
    real = labelled.measured(lambda feeds: {"y": feeds["x"]})
    worse = labelled.measured(lambda feeds: {"y": np.roll(feeds["x"], 1, 1)})
    drops = labelled.drops(real, worse)
    assert drops.shape == (labelled.draws,) == (6,)
    assert drops.mean() == pytest.approx(labelled.points(real) - labelled.points(worse), abs=5)


def test_a_wrong_mask_is_named(segmenter: ir.Model, tmp_path: Path) -> None:
    masks = MASKS.copy()
    masks[2, 0, 0] = 4
    labelled = read_labels(segmenter, {"x": IMAGES, "labels": masks}, tmp_path, None)
    with pytest.raises(CalibrationError, match=r"^.*2.*: the label is class 4, but the output has 4 classes"):
        labelled.score(lambda feeds: {"y": feeds["x"]})


@pytest.fixture
def gray() -> ir.Model:
    return parse("g (float[N,1,16,24] x) => (float[N,1,16,24] y) { y = Identity(x) }")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fit": "stretch"},
        {"resize": 20},
        {"resize": (18, 40), "crop": (16, 24)},
        {"resize": 8, "crop": (16, 24)},
        {"fit": "letterbox"},
        {"fit": "letterbox-corner"},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(30, 20), (20, 33), (24, 16), (5, 7)])
def test_a_mask_lies_as_its_image(
    gray: ir.Model, tmp_path: Path, options: dict[str, object], size: tuple[int, int]
) -> None:
    """An image of gray values is its own mask, but for what lies around it."""
    (spec,) = input_specs(gray)
    Image.fromarray(RNG.integers(1, 200, size[::-1]).astype(np.uint8)).save(tmp_path / "a.png")
    preprocessing = Preprocessing(resample="nearest", scale=1, fill=0, **options)  # type: ignore[arg-type]
    image, mask = preprocessing.load(tmp_path / "a.png", spec)[0, 0], preprocessing.mask(tmp_path / "a.png", spec)
    assert mask.shape == (16, 24)
    np.testing.assert_array_equal(np.where(mask == 255, 0, mask), image)


def test_colours_are_no_classes(gray: ir.Model, tmp_path: Path) -> None:
    (spec,) = input_specs(gray)
    Image.new("RGB", (24, 16)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"none")
    with pytest.raises(CalibrationError, match=r"the mask .*a\.png has colours \(mode RGB\): write the number"):
        np.asarray(MaskFile(tmp_path / "a.png", spec, Preprocessing()))
    with pytest.raises(CalibrationError, match=r"cannot decode mask .*b\.png"):
        np.asarray(MaskFile(tmp_path / "b.png", spec, Preprocessing()))


def test_a_palette_holds_classes(gray: ir.Model, tmp_path: Path) -> None:
    (spec,) = input_specs(gray)
    classes = RNG.integers(0, 21, (16, 24)).astype(np.uint8)
    image = Image.fromarray(classes).convert("P")
    image.putpalette(RNG.integers(0, 255, 768).astype(np.uint8).tobytes())
    image.putdata(classes.reshape(-1).tolist())
    image.save(tmp_path / "a.png")
    np.testing.assert_array_equal(Preprocessing().mask(tmp_path / "a.png", spec), classes)


@pytest.fixture
def by_color() -> ir.Model:
    """The scores of the classes are the channels of the image."""
    return parse("g (float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Identity(x) }")


def write_folders(folder: Path, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Images with their masks in folders; the scores and the masks."""
    pixels, masks = RNG.integers(0, 255, (count, 8, 8, 3)).astype(np.uint8), RNG.integers(0, 3, (count, 8, 8))
    for number, (image, mask) in enumerate(zip(pixels, masks.astype(np.uint8), strict=True)):
        for kind, array in (("images", image), ("masks", mask)):
            path = folder / kind / "a" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)
    return pixels.transpose(0, 3, 1, 2), masks


def test_folders_of_images_and_masks(by_color: ir.Model, tmp_path: Path) -> None:
    scores, masks = write_folders(tmp_path / "data")
    labelled = read_labels(by_color, tmp_path / "data", tmp_path / "spool", Preprocessing())
    assert labelled.score(lambda feeds: {"y": feeds["x"]}) == pytest.approx(wanted(scores, masks))


def test_each_image_has_one_mask(tmp_path: Path) -> None:
    write_folders(tmp_path)
    images, masks = tmp_path / "images", tmp_path / "masks"
    assert len(mask_files(images, masks)) == 5
    Image.new("L", (8, 8)).save(masks / "a" / "3.bmp")
    with pytest.raises(CalibrationError, match=r"has several masks, 3\.bmp and 3\.png, for the image .*3\.png"):
        mask_files(images, masks)
    for path in masks.glob("a/3.*"):
        path.unlink()
    with pytest.raises(CalibrationError, match=r"has no mask a/3 of any suffix, for the image .*3\.png"):
        mask_files(images, masks)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CalibrationError, match="empty has no images"):
        mask_files(tmp_path / "empty", masks)


def test_masks_are_labels_on_the_command_line(
    by_color: ir.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, masks = write_folders(tmp_path)
    model = str(tmp_path / "model.onnx")
    ir.save(by_color, model)
    command = ["eval", model, "--data", str(tmp_path / "images"), "--labels", str(tmp_path / "masks")]
    main([*command, "--metric", "mean-iou", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["score"]["value"] == pytest.approx(wanted(scores, masks))
