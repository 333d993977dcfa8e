"""Mean intersection over union, against scikit-learn's, and as the score of labelled samples."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parse
from sklearn.metrics import jaccard_score

from ptqc.errors import CalibrationError
from ptqc.evaluation.labels import LabelledMasks, LabelSource, labels_of, read_labels
from ptqc.evaluation.masks import joined, mean_iou, overlaps

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
