"""Forms of boxes against boxes that are known; overlaps; which of overlapping boxes are kept."""

import numpy as np
import pytest

from ptqc.evaluation.detection.boxes import FORMS, BoxForm, grid, overlap, sides, without_overlaps

CORNERS = np.array([[8.0, 10.0, 40.0, 44.0], [50.0, 20.0, 90.0, 60.0]])
CENTRES = np.array([[24.0, 27.0, 32.0, 34.0], [70.0, 40.0, 40.0, 40.0]])
CELLS = np.array([[2.0, 3.0, 8.0], [4.0, 2.0, 16.0]])
ANCHORS = np.array([[20.0, 30.0, 16.0, 20.0], [66.0, 44.0, 48.0, 32.0]])
STRIDE = CELLS[:, 2:]
OFFSETS = np.concatenate(
    [(CENTRES[:, :2] - ANCHORS[:, :2]) / ANCHORS[:, 2:], np.log(CENTRES[:, 2:] / ANCHORS[:, 2:])], 1
)
MIDDLES = np.tile((CELLS[:, :2] + 0.5) * STRIDE, 2)
WRITTEN = {
    "xyxy": CORNERS,
    "yxyx": CORNERS[:, [1, 0, 3, 2]],
    "cxcywh": CENTRES,
    "xywh": np.concatenate([CORNERS[:, :2], CENTRES[:, 2:]], 1),
    "cells": np.concatenate([CENTRES[:, :2] / STRIDE - CELLS[:, :2], np.log(CENTRES[:, 2:] / STRIDE)], 1),
    "distances": (CORNERS - MIDDLES) * [-1, -1, 1, 1] / STRIDE,
    "offsets": OFFSETS,
    "offsets-yx": OFFSETS[:, [1, 0, 3, 2]],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_every_form_gives_the_corners(form: BoxForm) -> None:
    beside = {"nothing": CORNERS, "cells": CELLS, "anchors": ANCHORS}[form.beside]
    np.testing.assert_allclose(form.corners(WRITTEN[form.name], beside), CORNERS)


def test_overlap_is_intersection_over_union() -> None:
    one = np.array([[0.0, 0.0, 2.0, 2.0]])
    others = np.array([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    assert overlap(one, others).tolist() == [[pytest.approx(1 / 7), 1.0, 0.0]]


def test_of_overlapping_boxes_of_a_label_the_first_is_kept() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 1, 10, 11], [20, 20, 30, 30], [0, 0, 9, 10]], np.float64)
    labels = np.array([0, 0, 1, 0, 0])
    assert without_overlaps(boxes, labels, 0.5, 9) == [0, 2, 3]
    assert without_overlaps(boxes, labels, 0.5, 2) == [0, 2]
    assert without_overlaps(boxes, labels, 1.0, 9) == [0, 1, 2, 3, 4]
    assert without_overlaps(np.zeros((0, 4)), np.zeros(0), 0.5, 9) == []


def test_the_cells_of_a_grid_are_row_by_row_and_level_by_level() -> None:
    cells = grid(8 * 4 + 4 * 2 + 2 * 1, (64, 32))
    assert cells is not None
    assert cells[[0, 1, 8, 32, 40]].tolist() == [[0, 0, 8], [1, 0, 8], [0, 1, 8], [0, 0, 16], [0, 0, 32]]
    assert grid(41, (64, 32)) is None
    assert sides((64, 32)).tolist() == [64, 32, 64, 32]
