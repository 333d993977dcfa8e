"""Boxes of a detector are read as they were written, whatever way that is, and both models' objects are compared."""

from collections.abc import Callable

import numpy as np
import pytest

from ptqc.evaluation.changed import ScoredBox, compared, objects_of, places_of, reading_of
from ptqc.losses.base import Group
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Probabilities
from ptqc.losses.detection import Detection
from ptqc.losses.scores import Scores

SIZE = (96, 64)  # width, height
STRIDES = (8, 16, 32)
OBJECTS = ((0, (8.0, 10.0, 40.0, 44.0)), (2, (50.0, 20.0, 90.0, 60.0)))
ONE_OUTPUT = {"out": Detection(2, (Group(0, 4), Group(4, 5, scores=True), Group(5, 8, scores=True)))}


def cells() -> np.ndarray:
    """Column, row, stride of all cells."""
    result = [
        (column, row, stride)
        for stride in STRIDES
        for row in range(SIZE[1] // stride)
        for column in range(SIZE[0] // stride)
    ]
    return np.array(result, np.float64)


def scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Corners in pixels of every cell, and (cells, 3) scores: sure where the middle of the cell is in an object."""
    grid = cells()
    middles = (grid[:, :2] + 0.5) * grid[:, 2:]
    corners = np.concatenate([middles - 6, middles + 6], 1)
    scores = rng.uniform(0, 0.05, (len(grid), 3))
    for label, box in OBJECTS:
        inside = (np.abs(middles - [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]) < 10).all(1)
        corners[inside] = np.array(box) + rng.normal(0, 0.6, (inside.sum(), 4))
        scores[inside, label] = rng.uniform(0.6, 0.9, inside.sum())
    return corners, scores


def centred(corners: np.ndarray) -> np.ndarray:
    return np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], 1)


def in_cells(corners: np.ndarray) -> np.ndarray:
    grid, box = cells(), centred(corners)
    return np.concatenate([box[:, :2] / grid[:, 2:] - grid[:, :2], np.log(box[:, 2:] / grid[:, 2:])], 1)


def distances(corners: np.ndarray) -> np.ndarray:
    grid = cells()
    middles = (grid[:, :2] + 0.5) * grid[:, 2:]
    return np.concatenate([middles - corners[:, :2], corners[:, 2:] - middles], 1) / grid[:, 2:]


WHOLE = np.array([*SIZE, *SIZE])
WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "corners in pixels": lambda corners: corners,
    "centre and size in pixels": centred,
    "corners as fractions of the image": lambda corners: corners / WHOLE,
    "centre and size as fractions of the image": lambda corners: centred(corners) / WHOLE,
    "offset and logarithm of the size in cells": in_cells,
    "distances from the middle of a cell": distances,
}


def output(boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes, np.ones((len(boxes), 1)), scores], 1)[None].astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_boxes_are_found_however_they_are_written(way: str, seed: int) -> None:
    corners, scores = scene(np.random.default_rng(seed))
    places = places_of(ONE_OUTPUT, {"out": output(WAYS[way](corners), scores)}, SIZE)
    assert places is not None
    reading = reading_of([places], SIZE)
    assert reading is not None
    assert reading.name == way
    result = sorted(objects_of(places, reading, SIZE), key=lambda one: one.label)
    assert [one.label for one in result] == [label for label, _ in OBJECTS]
    boxes = np.array([one.box for one in result]) * WHOLE
    assert np.abs(boxes - [box for _, box in OBJECTS]).max() < 3


@pytest.mark.parametrize("head", ["scores", "probabilities"])
def test_boxes_and_scores_may_be_two_outputs(head: str) -> None:
    corners, scores = scene(np.random.default_rng(5))
    if head == "scores":
        kind: Scores | Probabilities = Scores(2, places=True)
        outputs = {"boxes": corners[None], "scores": scores[None]}
    else:  # the last class is the background
        scores = scores / np.maximum(scores.sum(1, keepdims=True), 1)
        kind = Probabilities(2, background=3)
        outputs = {"boxes": corners[None], "scores": np.c_[scores, 1 - scores.sum(1)][None]}
    places = places_of({"scores": kind, "boxes": Boxes(2, "scores", kind)}, outputs, SIZE)
    assert places is not None
    assert set(places.labels) == {0, 2}
    reading = reading_of([places], SIZE)
    assert reading is not None
    assert reading.name == "corners in pixels"


def test_what_is_no_box_is_not_read() -> None:
    rng = np.random.default_rng(6)
    _, scores = scene(rng)
    places = places_of(ONE_OUTPUT, {"out": output(rng.normal(0, 1000, (len(scores), 4)), scores)}, SIZE)
    assert places is not None
    assert reading_of([places], SIZE) is None


def test_a_classifier_has_no_places() -> None:
    assert places_of({"y": Probabilities(1)}, {"y": np.full((1, 3), 1 / 3)}, SIZE) is None


def test_nothing_sure_is_nothing_found() -> None:
    corners, scores = scene(np.random.default_rng(7))
    nothing = places_of(ONE_OUTPUT, {"out": output(corners, scores * 0.1)}, SIZE)
    sure = places_of(ONE_OUTPUT, {"out": output(corners, scores)}, SIZE)
    assert nothing is not None
    assert sure is not None
    assert reading_of([nothing], SIZE) is None
    reading = reading_of([nothing, sure], SIZE)
    assert reading is not None
    assert objects_of(nothing, reading, SIZE) == []


def test_objects_of_both_models_are_matched_by_class_and_place() -> None:
    here, there, nearly = (0.1, 0.1, 0.5, 0.5), (0.6, 0.6, 0.9, 0.9), (0.12, 0.1, 0.5, 0.5)
    result = compared(
        [ScoredBox(1, 0.9, here), ScoredBox(2, 0.8, there)],
        [ScoredBox(1, 0.7, nearly), ScoredBox(3, 0.8, there)],
    )
    assert [one["matched"] for one in result["float"]] == [True, False]
    assert [one["matched"] for one in result["compiled"]] == [True, False]
    assert compared([], [ScoredBox(1, 0.9, here)])["compiled"][0]["matched"] is False
