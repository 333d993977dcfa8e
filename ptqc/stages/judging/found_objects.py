"""What a detector finds in a picture, by the float model and by the compiled one.

No file says how a model writes its boxes down: as corners or as centre and size, in pixels or in shares of the picture,
or relative to the cell of a grid. Detectors find an object at several neighbouring places, whose boxes agree only when
they are read as they were meant. So the way is taken, of those that give boxes inside the picture, in which the sure
boxes of one class overlap about as much as in any. Of what overlaps, the surest is shown (non-maximum suppression).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptqc.execute.onnxruntime import Feeds
from ptqc.losses import Kinds
from ptqc.losses.base import rows
from ptqc.losses.boxes import Boxes
from ptqc.losses.detection import Detection

CORNERS = 4
SURE = 0.3  # how likely an object is to be shown
SAME = 0.5  # intersection over union from which on two boxes are of one object
MOST_PLACES, SHOWN = 200, 12
# Of the best overlap, what an earlier way needs: right and bottom corners, read as sizes, make boxes larger, and those
# overlap more.
NEARLY = 0.8
NEAR = 2
INSIDE = 0.9  # share of the boxes that have to be possible
# Strides of the grids of detectors, those of several levels one behind the other.
GRIDS = ((8, 16, 32), (8, 16, 32, 64), (8, 16), (16, 32), (8,), (16,), (32,))


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
    """A way to read boxes. corners: from places and the size of the picture (width, height) to (n, 4) in pixels."""

    name: str
    corners: Callable[[DetectorPlaces, tuple[int, int]], np.ndarray]
    on_grid: bool = False


def _centred(centre: np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.concatenate([centre - size / 2, centre + size / 2], 1)


def _twice(size: tuple[int, int]) -> np.ndarray:
    return np.array([*size, *size], np.float64)


def _from_cells(places: DetectorPlaces, _size: tuple[int, int]) -> np.ndarray:
    """Offset in cells and logarithm of the size, as YOLOX has it (Ge et al. 2021, arXiv 2107.08430)."""
    cells = _cells_of(places)
    centre = (places.boxes[:, :2] + cells[:, :2]) * cells[:, 2:]
    return _centred(centre, np.exp(np.minimum(places.boxes[:, 2:], 50)) * cells[:, 2:])


def _by_distances(places: DetectorPlaces, _size: tuple[int, int]) -> np.ndarray:
    """Distances of the sides from the middle of the cell, as FCOS has it (Tian et al. 2019, arXiv 1904.01355)."""
    cells = _cells_of(places)
    middle = np.tile((cells[:, :2] + 0.5) * cells[:, 2:], 2)
    return np.asarray(middle + places.boxes * cells[:, 2:] * [-1, -1, 1, 1])


def _cells_of(places: DetectorPlaces) -> np.ndarray:
    assert places.cells is not None
    return places.cells


READINGS = (
    BoxReading("corners in pixels", lambda places, _size: places.boxes),
    BoxReading("centre and size in pixels", lambda places, _size: _centred(places.boxes[:, :2], places.boxes[:, 2:])),
    BoxReading("corners in shares of the picture", lambda places, size: places.boxes * _twice(size)),
    BoxReading(
        "centre and size in shares of the picture",
        lambda places, size: _centred(places.boxes[:, :2], places.boxes[:, 2:]) * _twice(size),
    ),
    BoxReading("offset and logarithm of the size in cells", _from_cells, on_grid=True),
    BoxReading("distances from the middle of a cell", _by_distances, on_grid=True),
)


def places_of(kinds: Kinds, outputs: Feeds, size: tuple[int, int]) -> DetectorPlaces | None:
    """The sure places of one picture of `size` (width, height); None where no output is one of boxes."""
    found = next(_boxes_and_scores(kinds, outputs), None)
    if found is None:
        return None
    boxes, scores = found
    if boxes.shape[1] != CORNERS or len(boxes) != len(scores):
        return None
    best = scores.max(1)
    chosen = np.argsort(-best, kind="stable")[:MOST_PLACES]
    chosen = chosen[best[chosen] > SURE]
    cells = _grid(len(boxes), *size)
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
            yield anchors[:, first : first + CORNERS], kind.scores(anchors)


def _grid(count: int, width: int, height: int) -> np.ndarray | None:
    """Column, row and stride of each of `count` places, row by row; None where they are those of no known grid."""
    for strides in GRIDS:
        shapes = [(-(-height // stride), -(-width // stride)) for stride in strides]
        if sum(rows * columns for rows, columns in shapes) == count:
            levels = [
                np.stack([*np.indices(shape)[::-1].reshape(2, -1), np.full(shape[0] * shape[1], stride)], 1)
                for shape, stride in zip(shapes, strides, strict=True)
            ]
            return np.concatenate(levels).astype(np.float64)
    return None


def reading_of(found: Sequence[DetectorPlaces], size: tuple[int, int]) -> BoxReading | None:
    """How boxes are written, as those of some pictures show; None where no way gives boxes inside the picture."""
    given = [places for places in found if len(places.boxes)]
    agreements = dict[BoxReading, float]()
    for reading in READINGS:
        if given and all(_is_possible(reading, places, size) for places in given):
            agreements[reading] = float(np.mean([_agreement(reading.corners(p, size), p.labels) for p in given]))
    enough = NEARLY * max(agreements.values(), default=0)
    return next((reading for reading, agreement in agreements.items() if agreement >= enough), None)


def _is_possible(reading: BoxReading, places: DetectorPlaces, size: tuple[int, int]) -> bool:
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


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union (n, m) of boxes (n, 4) and (m, 4) given by their corners."""
    a, b = first[:, None], second[None]
    inner = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None).prod(-1)
    areas = [np.clip(box[..., 2:] - box[..., :2], 0, None).prod(-1) for box in (a, b)]
    return np.asarray(inner / np.maximum(areas[0] + areas[1] - inner, 1e-12))


def objects_of(places: DetectorPlaces, reading: BoxReading, size: tuple[int, int]) -> list[FoundObject]:
    """The surest of what overlaps, at most SHOWN."""
    corners = reading.corners(places, size)
    apart = np.where(places.labels[:, None] == places.labels, overlap(corners, corners), 0)
    kept = list[int]()
    for place in range(len(corners)):  # by falling score
        if len(kept) < SHOWN and not any(apart[place, other] > SAME for other in kept):
            kept.append(place)
    shares = np.clip(corners / _twice(size), 0, 1)
    return [
        FoundObject(int(places.labels[i]), float(places.scores[i]), (*map(float, shares[i]),))  # type: ignore[arg-type]
        for i in kept
    ]


def compared(float_ones: Sequence[FoundObject], compiled: Sequence[FoundObject]) -> Mapping[str, list[dict[str, Any]]]:
    """Both, each with whether the other has an object of its class at its place."""

    def told(own: Sequence[FoundObject], others: Sequence[FoundObject]) -> list[dict[str, Any]]:
        return [replace(one, matched=any(_are_one(one, other) for other in others)).to_json() for one in own]

    return {"float": told(float_ones, compiled), "compiled": told(compiled, float_ones)}


def _are_one(one: FoundObject, other: FoundObject) -> bool:
    return one.label == other.label and bool(overlap(np.array([one.box]), np.array([other.box]))[0, 0] >= SAME)
