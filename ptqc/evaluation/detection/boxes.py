"""The forms in which detectors write boxes, as corners; how far boxes overlap, and which of those that do are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Size = tuple[int, int]  # (width, height)
BoxFormName = Literal["xyxy", "yxyx", "cxcywh", "xywh", "cells", "distances", "offsets", "offsets-yx"]
Beside = Literal["nothing", "cells", "anchors"]
VARIANCES = (0.1, 0.1, 0.2, 0.2)
LARGEST_LOGARITHM = 50.0
SIDES = 4
# Strides of the grids of detectors, those of several levels one behind the other.
GRIDS = ((8, 16, 32), (8, 16, 32, 64), (8, 16), (16, 32), (8,), (16,), (32,))


@dataclass(frozen=True)
class BoxForm:
    """A form of boxes.

    beside: what boxes are told relative to, if anything: cells (n, 3) with column, row and stride of each, or anchors
    (n, 4) with their centre, width and height. corners: from boxes (n, 4) and what is beside them to left, top, right
    and bottom, in the unit of the boxes; in pixels if relative to cells, in the unit of the anchors if relative to
    these.
    """

    name: BoxFormName
    description: str
    corners: Callable[[np.ndarray, np.ndarray], np.ndarray]
    beside: Beside = "nothing"


def centred(boxes: np.ndarray) -> np.ndarray:
    """Corners of boxes that are told by centre, width and height."""
    centre, size = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([centre - size / 2, centre + size / 2], 1)


def _from_cells(boxes: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Offset in cells and logarithm of the size, as YOLOX has it (Ge et al. 2021, arXiv 2107.08430)."""
    centre = (boxes[:, :2] + cells[:, :2]) * cells[:, 2:]
    size = np.exp(np.minimum(boxes[:, 2:], LARGEST_LOGARITHM)) * cells[:, 2:]
    return centred(np.concatenate([centre, size], 1))


def _by_distances(boxes: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Distances of the sides from the middle of the cell, as FCOS has it (Tian et al. 2019, arXiv 1904.01355)."""
    middle = np.tile((cells[:, :2] + 0.5) * cells[:, 2:], 2)
    return np.asarray(middle + boxes * cells[:, 2:] * [-1, -1, 1, 1])


def _from_anchors(boxes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Shift in sizes of the anchor and logarithm of the ratio of sizes (Liu et al. 2016, SSD, arXiv 1512.02325)."""
    centre = anchors[:, :2] + boxes[:, :2] * anchors[:, 2:]
    size = np.exp(np.minimum(boxes[:, 2:], LARGEST_LOGARITHM)) * anchors[:, 2:]
    return centred(np.concatenate([centre, size], 1))


FORMS = {
    form.name: form
    for form in (
        BoxForm("xyxy", "left, top, right, bottom", lambda boxes, _: boxes),
        BoxForm("yxyx", "top, left, bottom, right", lambda boxes, _: boxes[:, [1, 0, 3, 2]]),
        BoxForm("cxcywh", "centre, width, height", lambda boxes, _: centred(boxes)),
        BoxForm(
            "xywh",
            "left, top, width, height",
            lambda boxes, _: np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
        ),
        BoxForm("cells", "offset and logarithm of the size in cells, as of YOLOX", _from_cells, "cells"),
        BoxForm("distances", "distances from the middle of a cell, as of FCOS", _by_distances, "cells"),
        BoxForm("offsets", "x, y, width, height relative to anchors, as of SSD", _from_anchors, "anchors"),
        BoxForm(
            "offsets-yx",
            "y, x, height, width relative to anchors, as of TensorFlow's SSD",
            lambda boxes, anchors: _from_anchors(boxes[:, [1, 0, 3, 2]], anchors),
            "anchors",
        ),
    )
}


def grid(count: int, size: Size) -> np.ndarray | None:
    """Column, row and stride of each of `count` places, row by row; None where they are those of no known grid."""
    width, height = size
    for strides in GRIDS:
        shapes = [(-(-height // stride), -(-width // stride)) for stride in strides]
        if sum(rows * columns for rows, columns in shapes) == count:
            levels = [
                np.stack([*np.indices(shape)[::-1].reshape(2, -1), np.full(shape[0] * shape[1], stride)], 1)
                for shape, stride in zip(shapes, strides, strict=True)
            ]
            return np.concatenate(levels).astype(np.float64)
    return None


def sides(size: Size) -> np.ndarray:
    """What shares of a picture are multiplied by to be pixels."""
    return np.array([*size, *size], np.float64)


def intersection(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Common areas (n, m) of boxes (n, 4) and (m, 4) given by their corners."""
    a, b = first[:, None], second[None]
    inner = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.asarray(np.clip(inner, 0, None).prod(-1))


def areas(boxes: np.ndarray) -> np.ndarray:
    """Of boxes given by their corners; 0 where right is left of left."""
    return np.asarray(np.clip(boxes[..., 2:] - boxes[..., :2], 0, None).prod(-1))


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union (n, m) of boxes (n, 4) and (m, 4) given by their corners."""
    inner = intersection(first, second)
    return np.asarray(inner / np.maximum(areas(first)[:, None] + areas(second) - inner, 1e-12))


def without_overlaps(boxes: np.ndarray, labels: np.ndarray, most: float, count: int) -> list[int]:
    """Places of at most `count` boxes of which no two of one label overlap by more than `most`, the first ones kept.

    boxes (n, 4): corners, the surest in front (greedy non-maximum suppression).
    """
    overlaps, left = list[int](), np.arange(len(boxes))
    while len(left) and len(overlaps) < count:
        first, left = left[0], left[1:]
        overlaps.append(int(first))
        same = labels[left] == labels[first]
        apart = np.ones(len(left), bool)
        apart[same] = overlap(boxes[[first]], boxes[left[same]])[0] <= most
        left = left[apart]
    return overlaps
