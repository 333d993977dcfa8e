"""What a detector finds in a picture, by the float model and by the compiled one.

No file says how a model writes its boxes down: as corners or as centre and size, in pixels or in shares of the picture,
or relative to the cell of a grid. Where the user does not say it either, the boxes themselves have to: detectors find
an object at several neighbouring places, whose boxes agree only when they are read as they were meant. So the way is
taken, of those that give boxes inside the picture, in which the sure boxes of one class overlap about as much as in
any. Of what overlaps, the surest is shown (non-maximum suppression).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptqc.evaluation.detection.boxes import FORMS, SIDES, BoxForm, Size, grid, overlap, sides, without_overlaps
from ptqc.evaluation.detection.detector import Detector
from ptqc.execution.onnxruntime import Feeds
from ptqc.losses import Kinds
from ptqc.losses.base import rows
from ptqc.losses.boxes import Boxes
from ptqc.losses.detection import Detection

SURE = 0.3  # how likely an object is to be shown
SAME = 0.5  # intersection over union from which on two boxes are of one object
MOST_PLACES, SHOWN = 200, 12
# Of the best overlap, what an earlier way needs: right and bottom corners, read as sizes, make boxes larger, and those
# overlap more.
NEARLY = 0.8
NEAR = 2
INSIDE = 0.9  # share of the boxes that have to be possible


@dataclass(frozen=True)
class DetectorPlaces:
    """The sure places of one picture. boxes (n, 4): as the model writes them. cells (n, 3): column, row, stride."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    cells: np.ndarray | None


@dataclass(frozen=True)
class FoundObject:
    """box: left, top, right and bottom as shares of the picture. matched: whether the other model finds it, too."""

    label: int
    score: float
    box: tuple[float, float, float, float]
    matched: bool = False

    def to_json(self) -> dict[str, Any]:
        """The document for the report."""
        box = [round(side, 4) for side in self.box]
        return {"label": self.label, "score": round(self.score, 4), "box": box, "matched": self.matched}


@dataclass(frozen=True)
class BoxReading:
    """A way to read boxes. shares: whether they are shares of the picture."""

    name: str
    form: BoxForm
    shares: bool = False

    @property
    def on_grid(self) -> bool:
        """Whether it needs the cells of a grid."""
        return self.form.beside == "cells"

    def corners(self, places: DetectorPlaces, size: Size) -> np.ndarray:
        """Those of places, (n, 4) in pixels; size: width and height of the picture."""
        beside = places.boxes if places.cells is None else places.cells
        corners = self.form.corners(places.boxes, beside)
        return corners * sides(size) if self.shares else corners


READINGS = (
    BoxReading("corners in pixels", FORMS["xyxy"]),
    BoxReading("centre and size in pixels", FORMS["cxcywh"]),
    BoxReading("corners in shares of the picture", FORMS["xyxy"], shares=True),
    BoxReading("centre and size in shares of the picture", FORMS["cxcywh"], shares=True),
    BoxReading("offset and logarithm of the size in cells", FORMS["cells"]),
    BoxReading("distances from the middle of a cell", FORMS["distances"]),
)


def places_of(kinds: Kinds, outputs: Feeds, size: Size) -> DetectorPlaces | None:
    """The sure places of one picture of `size` (width, height); None where no output is one of boxes."""
    found = next(_boxes_and_scores(kinds, outputs), None)
    if found is None:
        return None
    boxes, scores = found
    if boxes.shape[1] != SIDES or len(boxes) != len(scores):
        return None
    best = scores.max(1)
    chosen = np.argsort(-best, kind="stable")[:MOST_PLACES]
    chosen = chosen[best[chosen] > SURE]
    cells = grid(len(boxes), size)
    return DetectorPlaces(
        boxes[chosen], scores[chosen].argmax(1), best[chosen], None if cells is None else cells[chosen]
    )


def _boxes_and_scores(kinds: Kinds, outputs: Feeds) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for name, kind in kinds.items():
        if isinstance(kind, Boxes) and kind.head is not None:
            yield kind.read(name, outputs)[:, :-1], kind.head.scores(outputs[kind.scores])
        elif isinstance(kind, Detection):
            anchors = rows(outputs[name], kind.axis)
            first = min(group.start for group in kind.groups if not group.scores)
            yield anchors[:, first : first + SIDES], kind.scores(anchors)


def reading_of(found: Sequence[DetectorPlaces], size: Size) -> BoxReading | None:
    """How boxes are written, as those of some pictures show; None where no way gives boxes inside the picture."""
    given = [places for places in found if len(places.boxes)]
    agreements = dict[BoxReading, float]()
    for reading in READINGS:
        if given and all(_is_possible(reading, places, size) for places in given):
            agreements[reading] = float(np.mean([_agreement(reading.corners(p, size), p.labels) for p in given]))
    enough = NEARLY * max(agreements.values(), default=0)
    return next((reading for reading, agreement in agreements.items() if agreement >= enough), None)


def _is_possible(reading: BoxReading, places: DetectorPlaces, size: Size) -> bool:
    """Whether nearly all boxes have a size of at least a pixel, no more than the picture's, and lie in it.

    On a grid they also have to be no farther from their cell than NEAR of its strides.
    """
    if reading.on_grid and places.cells is None:
        return False
    corners = reading.corners(places, size)
    least, most, middle = corners[:, :2], corners[:, 2:], (corners[:, :2] + corners[:, 2:]) / 2
    extent, whole = most - least, np.array(size)
    possible = (extent >= 1) & (extent <= 1.5 * whole) & (middle >= 0) & (middle <= whole)
    if places.cells is not None:
        cells = (places.cells[:, :2] + 0.5) * places.cells[:, 2:]
        possible &= np.abs(middle - cells) <= extent / 2 + NEAR * places.cells[:, 2:]
    return bool(possible.all(1).mean() >= INSIDE)


def _agreement(corners: np.ndarray, labels: np.ndarray) -> float:
    """The mean of how far each box overlaps the one of its class that it overlaps most."""
    overlaps = overlap(corners, corners) * (labels[:, None] == labels)
    np.fill_diagonal(overlaps, 0)
    return float(overlaps.max(1).mean())


def objects_of(places: DetectorPlaces, reading: BoxReading, size: Size) -> list[FoundObject]:
    """The surest of what overlaps, at most SHOWN."""
    corners = reading.corners(places, size)
    kept = without_overlaps(corners, places.labels, SAME, SHOWN)
    return _shown(corners[kept], places.labels[kept], places.scores[kept], size)


def stated_objects(detector: Detector, outputs: Mapping[str, Any], size: Size) -> list[FoundObject]:
    """The surest of what outputs of one picture say, at most SHOWN, in the way that the user states.

    Raises UsageError where the outputs are not as was stated.
    """
    found = detector.found(outputs, size)
    sure = np.flatnonzero(found.scores > SURE)[:SHOWN]
    return _shown(found.boxes[sure], found.labels[sure], found.scores[sure], size)


def _shown(corners: np.ndarray, labels: np.ndarray, scores: np.ndarray, size: Size) -> list[FoundObject]:
    shares = np.clip(corners / sides(size), 0, 1)
    return [
        FoundObject(int(label), float(score), (*map(float, box),))  # type: ignore[arg-type]
        for label, score, box in zip(labels, scores, shares, strict=True)
    ]


def compared(float_ones: Sequence[FoundObject], compiled: Sequence[FoundObject]) -> Mapping[str, list[dict[str, Any]]]:
    """Both, each with whether the other has an object of its class at its place."""

    def told(own: Sequence[FoundObject], others: Sequence[FoundObject]) -> list[dict[str, Any]]:
        return [replace(one, matched=any(_are_one(one, other) for other in others)).to_json() for one in own]

    return {"float": told(float_ones, compiled), "compiled": told(compiled, float_ones)}


def _are_one(one: FoundObject, other: FoundObject) -> bool:
    return one.label == other.label and bool(overlap(np.array([one.box]), np.array([other.box]))[0, 0] >= SAME)
