"""Mean average precision as COCO defines it (Lin et al. 2014, arXiv 1405.0312).

Of each picture and class the surest MOST detections are matched, the surest first, with the true box that they overlap
most, by at least the threshold, and that is not taken. Precision, made to fall with recall, is averaged over 101
recalls; the mean is over the classes that occur and the thresholds 0.5, 0.55, …, 0.95. What lies in a crowd counts
neither way.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ptqc.evaluation.detection.boxes import Size, areas, intersection
from ptqc.evaluation.detection.detector import Detections

THRESHOLDS = tuple(float(value) for value in np.linspace(0.5, 0.95, 10))
AT_75 = 5  # its place among them
RECALLS = np.linspace(0, 1, 101)
MOST = 100
ALMOST_WHOLE = 1 - 1e-10
HIT, MISS, IGNORED = 1, 0, -1


@dataclass(frozen=True)
class Truth:
    """What is in a picture. boxes (n, 4): corners in pixels of the model's input of `size`. crowd (n,): of many."""

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    size: Size


@dataclass(frozen=True)
class Matched:
    """One picture. results (n, thresholds): HIT, MISS or IGNORED. true: the labels of boxes that can be found."""

    scores: np.ndarray
    labels: np.ndarray
    results: np.ndarray
    true: np.ndarray


def matched(detections: Detections, truth: Truth) -> Matched:
    """The detections of a picture, each with whether it is right."""
    order, parts = list[int](), list[np.ndarray]()
    for label in np.unique(detections.labels):
        own = np.flatnonzero(detections.labels == label)
        own = own[np.argsort(-detections.scores[own], kind="stable")][:MOST]
        there = truth.labels == label
        order += own.tolist()
        parts.append(_results(detections.boxes[own], truth.boxes[there], truth.crowd[there]))
    results = np.concatenate(parts) if parts else np.zeros((0, len(THRESHOLDS)), np.int8)
    return Matched(detections.scores[order], detections.labels[order], results, truth.labels[~truth.crowd])


def _results(array: np.ndarray, true: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """(detections, thresholds), of one class."""
    results = np.full((len(array), len(THRESHOLDS)), MISS, np.int8)
    inner, own = intersection(array, true), areas(array)[:, None]
    union = np.where(crowd, own, own + areas(true) - inner)
    shares = inner / np.maximum(union, 1e-12)
    for place, threshold in enumerate(THRESHOLDS):
        taken, least = np.zeros(len(true), bool), min(threshold, ALMOST_WHOLE)
        for one, row in enumerate(shares):
            free = np.where(taken | crowd, -1.0, row)
            if len(free) and free.max() >= least:
                # Of equal ones the last, as COCO's own code has it.
                taken[len(free) - 1 - free[::-1].argmax()] = True
                results[one, place] = HIT
            elif (row[crowd] >= least).any():
                results[one, place] = IGNORED
    return results


@dataclass(frozen=True)
class MeanPrecision:
    """Shares: of all thresholds, and of the lowest and the one at 0.75."""

    mean: float
    at_50: float
    at_75: float

    @classmethod
    def of(cls, pictures: Iterable[Matched]) -> "MeanPrecision":
        """NaN where no picture has anything to be found."""
        precisions = np.array(list(_of_classes(list(pictures))))
        if not len(precisions):
            return cls(*[float("nan")] * 3)
        means = precisions.mean(0)
        return cls(float(means.mean()), float(means[0]), float(means[AT_75]))


def _of_classes(pictures: Sequence[Matched]) -> Iterator[np.ndarray]:
    """Average precision (thresholds,) of each class that occurs."""
    if not pictures:
        return
    true = np.concatenate([picture.true for picture in pictures])
    scores, labels = (np.concatenate([getattr(picture, of) for picture in pictures]) for of in ("scores", "labels"))
    results = np.concatenate([picture.results for picture in pictures])
    for label, count in zip(*np.unique(true, return_counts=True), strict=True):
        own = np.flatnonzero(labels == label)
        own = own[np.argsort(-scores[own], kind="stable")]
        yield _average(results[own], int(count))


def _average(results: np.ndarray, count: int) -> np.ndarray:
    """Average precision at each threshold. results: of one class, the surest in front; count: what can be found."""
    hits, misses = (np.cumsum(results == kind, 0) for kind in (HIT, MISS))
    precision = hits / np.maximum(hits + misses, 1)
    falling = np.maximum.accumulate(precision[::-1], 0)[::-1]
    average = np.zeros(results.shape[1])
    for place in range(results.shape[1]):
        at = np.searchsorted(hits[:, place] / count, RECALLS)
        average[place] = falling[at[at < len(falling)], place].sum() / len(RECALLS)
    return average
