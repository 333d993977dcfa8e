"""What counts as a detection that is kept, and how the heads of a detector are cut."""

from pathlib import Path

import detections
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from detections import Detections
from graphs import noise, parse

from ptqc.evaluation.changed import overlap


def found(*rows: tuple[float, float, float, int]) -> Detections:
    """Squares of 10 pixels at x, y with a score and a class."""
    x, y, scores, classes = (np.array(column) for column in zip(*rows, strict=True))
    return Detections(np.stack([x, y, x + 10, y + 10], 1), scores, classes)


def test_intersection_over_union_by_hand() -> None:
    one, other = np.array([[0, 0, 10, 10]]), np.array([[0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30]])
    assert overlap(one, other).tolist() == [[1.0, 50 / 150, 0.0]]


def test_what_is_kept() -> None:
    real = found((0, 0, 0.9, 1), (100, 0, 0.8, 1), (200, 0, 0.7, 2))
    moved = found((2, 0, 0.9, 1), (106, 0, 0.8, 1), (200, 0, 0.7, 3))
    assert detections.matches(real, real) == 3
    assert detections.matches(real, moved) == 1, "the second has moved too far, the third is of another class"
    twice = found((0, 0, 0.9, 1), (1, 0, 0.8, 1))
    assert detections.matches(twice, found((0, 0, 0.9, 1))) == 1, "one that is found stands for one"


def test_overlapping_anchors_are_one_detection() -> None:
    anchors = np.zeros((52 * 52 + 26 * 26 + 13 * 13, 85), np.float32)
    anchors[:, :4] = [0, 0, np.log(4), np.log(4)]  # squares of 4 cells
    anchors[[0, 1, 30], 4] = [0.9, 0.8, 0.7]
    anchors[[0, 1, 30], 7] = 0.5
    some = detections.detections(anchors, 0.25)
    assert some.classes.tolist() == [2, 2, 2]
    assert some.scores.tolist() == pytest.approx([0.45, 0.4, 0.35])
    assert some.boxes[2].tolist() == [224, -16, 256, 16]
    anchors[1, :2] = [-0.9, 0]
    assert detections.detections(anchors, 0.25).scores.tolist() == pytest.approx([0.45, 0.35])
    assert detections.detections(anchors, 0.4).scores.tolist() == pytest.approx([0.45])


@pytest.mark.parametrize("layout", detections.LAYOUTS)
def test_all_layouts_give_the_same_anchors(layout: str, tmp_path: Path) -> None:
    text = """g (float[1, 3, 4, 4] images) => (float[1, 20, 6] output) {
        a = Conv(images, w) half = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (images) b = Conv(half, w)
        c = Reshape(a, flat) d = Reshape(b, flat) e = Concat <axis = 2> (c, d)
        output = Transpose <perm = [0, 2, 1]> (e)
    }"""
    whole, part = tmp_path / "whole.onnx", tmp_path / "part.onnx"
    ir.save(parse(text, w=noise(6, 3, 1, 1), flat=np.array([0, 6, -1])), whole)
    detections.cut(whole, layout, part)
    x = {"images": noise(1, 3, 4, 4, seed=1)}
    anchors = [
        detections.LAYOUTS[name].anchors(detections.harness.open_model(path)(x))
        for name, path in (("first", whole), (layout, part))
    ]
    assert anchors[0].shape == (20, 6)
    np.testing.assert_array_equal(anchors[0], anchors[1])
    assert len(onnx.load(part).graph.output) == (2 if layout == "maps" else 1)


def test_shares_of_what_was_found() -> None:
    anchors = np.zeros((52 * 52 + 26 * 26 + 13 * 13, 85), np.float32)
    anchors[[0, 30], 4:6] = [[1.0, 0.6], [1.0, 0.28]]
    fallen = anchors.copy()
    fallen[30, 5] = 0.26
    comparison = detections.Comparison()
    comparison.add(anchors, fallen)
    row = comparison.to_json()
    assert [row[f"kept_{limit}"] for limit in (0.25, 0.3, 0.5)] == [1.0, 1.0, 1.0]
    assert [row[f"detections_{limit}"] for limit in (0.25, 0.3, 0.5)] == [2, 1, 1]
    fallen[30, 5] = 0.24
    comparison.add(anchors, fallen)
    assert comparison.to_json()["kept_0.25"] == 0.75
    assert row["class_decibels"] == pytest.approx(10 * np.log10((0.6**2 + 0.28**2) / 0.02**2), rel=1e-4)
