"""Mean average precision against small cases that are known, and against figures of COCO's own code."""

import numpy as np
import pytest

from ptqc.evaluation.detection.detector import Detections
from ptqc.evaluation.detection.precision import MeanPrecision, Truth, matched

SIZE = (100, 100)


def truth(boxes: list[list[float]], labels: list[int], crowd: tuple[int, ...] = ()) -> Truth:
    is_crowd = np.isin(np.arange(len(labels)), crowd)
    return Truth(np.array(boxes, np.float64).reshape(-1, 4), np.array(labels, int), is_crowd, SIZE)


def found(boxes: list[list[float]], scores: list[float], labels: list[int]) -> Detections:
    return Detections(np.array(boxes, np.float64).reshape(-1, 4), np.array(scores), np.array(labels, int))


HERE, THERE, AWAY = [10.0, 10, 50, 50], [60.0, 60, 90, 90], [0.0, 70, 20, 90]


def test_all_found_is_perfect_and_nothing_found_is_none() -> None:
    there = truth([HERE, THERE], [0, 1])
    assert MeanPrecision.of([matched(found([HERE, THERE], [0.9, 0.8], [0, 1]), there)]).mean == pytest.approx(1)
    assert MeanPrecision.of([matched(found([], [], []), there)]).mean == 0
    assert np.isnan(MeanPrecision.of([matched(found([HERE], [0.9], [0]), truth([], []))]).mean)


def test_a_wrong_one_in_front_halves_the_precision() -> None:
    both = matched(found([AWAY, HERE], [0.9, 0.8], [0, 0]), truth([HERE], [0]))
    assert MeanPrecision.of([both]).mean == pytest.approx(0.5)
    behind = matched(found([AWAY, HERE], [0.7, 0.8], [0, 0]), truth([HERE], [0]))
    assert MeanPrecision.of([behind]).mean == pytest.approx(1)


def test_a_box_is_found_once_and_half_of_the_recall_is_half_of_the_precision() -> None:
    twice = matched(found([HERE, HERE], [0.9, 0.8], [0, 0]), truth([HERE, THERE], [0, 0]))
    assert MeanPrecision.of([twice]).mean == pytest.approx(51 / 101)


def test_thresholds_count_how_well_a_box_fits() -> None:
    one = matched(found([[10.0, 10, 50, 40]], [0.9], [0]), truth([HERE], [0]))  # three quarters of it
    result = MeanPrecision.of([one])
    assert (result.mean, result.at_50, result.at_75) == pytest.approx((0.6, 1, 1))


def test_what_lies_in_a_crowd_counts_neither_way() -> None:
    there = truth([HERE, [55.0, 55, 99, 99]], [0, 0], crowd=(1,))
    one = matched(found([THERE, HERE], [0.9, 0.8], [0, 0]), there)
    assert MeanPrecision.of([one]).mean == pytest.approx(1)


# What pycocotools 2.0.11 says of the pictures of `drawn` with these seeds: AP, AP50, AP75.
OF_COCO = {
    0: (0.13468515, 0.38931793, 0.08611190),
    1: (0.12581302, 0.40071832, 0.05481011),
    2: (0.18912427, 0.40587527, 0.11813223),
}


def drawn(seed: int) -> list[tuple[Detections, Truth]]:
    """Pictures with crowds, shifted and missing boxes, wrong labels and equal scores."""
    rng, pictures = np.random.default_rng(seed), []
    for _ in range(12):
        count = int(rng.integers(0, 7))
        corner, size = rng.uniform(0, 60, (count, 2)), rng.uniform(8, 40, (count, 2))
        true = np.concatenate([corner, corner + size], 1).round(1)
        labels = rng.integers(0, 3, count)
        there = Truth(true, labels, rng.random(count) < 0.15, SIZE)
        copies = np.repeat(np.arange(count), 2)
        boxes = true[copies] + rng.normal(0, 3, (2 * count, 4))
        said = np.where(rng.random(2 * count) < 0.8, labels[copies], rng.integers(0, 3, 2 * count))
        wrong = rng.uniform(0, 50, (4, 2))
        boxes = np.concatenate([boxes, np.concatenate([wrong, wrong + 20], 1)]).round(1)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        said = np.concatenate([said, rng.integers(0, 3, 4)])
        scores = rng.random(len(boxes)).round(1)
        order = np.argsort(-scores, kind="stable")
        pictures.append((Detections(boxes[order], scores[order], said[order]), there))
    return pictures


@pytest.mark.parametrize("seed", OF_COCO)
def test_it_is_what_cocos_own_code_says(seed: int) -> None:
    result = MeanPrecision.of(matched(*picture) for picture in drawn(seed))
    assert (result.mean, result.at_50, result.at_75) == pytest.approx(OF_COCO[seed], abs=1e-6)
