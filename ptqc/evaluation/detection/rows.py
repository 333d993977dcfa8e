"""Boxes, scores and classes of a detector's outputs, as rows: one for each place."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ptqc.errors import UsageError
from ptqc.evaluation.detection.boxes import SIDES
from ptqc.losses.words import PLACES, says

Probabilities = Callable[[np.ndarray], np.ndarray]
# Columns of a detector with one output: all but the box and the scores of all classes are one channel each.
BOX, CLASSES = "box", "classes"
ONCE = ("objectness", "score", "class", "image")
ROWS = ("box,classes", "box,objectness,classes", "box,score,class", "image,box,class,score")
SCORE_WORDS = frozenset(["score", "scores", "conf", "confidence", "confidences", "cls", "logit", "logits", "prob"])
CLASS_WORDS = frozenset(["class", "classes", "label", "labels", "category", "categories", "ids"])
COUNT_WORDS = frozenset(["num", "count", "number", "valid"])
# How likely something has to be, to be counted at all.
LEAST_SCORE = 1e-3


@dataclass(frozen=True)
class PlacedScores:
    """Places, what is said to be there, and how surely; one place may have several."""

    places: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class DetectorRows:
    """What stands for each place. scores: (n, classes), or (n,) where classes (n,) says which. chosen: by the model."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray | None = None
    objectness: np.ndarray | None = None
    selected: np.ndarray | None = None

    @property
    def chosen(self) -> bool:
        """Whether the model itself has left out what overlaps."""
        return self.classes is not None or self.selected is not None

    @classmethod
    def of(cls, columns: tuple[str, ...], named: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> "DetectorRows":
        """From the outputs of one sample by name. named: those whose role is said, by this.

        Raises UsageError where the outputs do not show what is what.
        """
        joined = named.get("all") or (next(iter(arrays)) if len(arrays) == 1 or columns else None)
        if joined:
            return cls._of_columns(columns, _named(arrays, joined))
        return cls._of_several(dict(_roles(named, arrays)), arrays)

    @classmethod
    def _of_columns(cls, columns: tuple[str, ...], array: np.ndarray) -> "DetectorRows":
        if not columns:
            raise UsageError(
                f"boxes and scores are one output of shape {array.shape}: say what each box has with --columns, "
                f"such as {' or '.join(ROWS)}"
            )
        table, others = _table(array), SIDES + sum(name in ONCE for name in columns)
        if CLASSES in columns:
            table = table.T if table.shape[0] < table.shape[1] else table
        width = table.shape[1]
        if width < others + (CLASSES in columns) or (CLASSES not in columns and width != others):
            raise UsageError(f"an output of shape {array.shape} does not have the columns {','.join(columns)}")
        result, start = dict[str, np.ndarray](), 0
        for name in columns:
            stop = start + (SIDES if name == BOX else width - others if name == CLASSES else 1)
            result[name], start = table[:, start:stop].astype(np.float64), stop
        if "class" in result:
            return cls(result[BOX], result["score"][:, 0], result["class"][:, 0])
        return cls(result[BOX], result[CLASSES], objectness=result.get("objectness"))

    @classmethod
    def _of_several(cls, roles: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> "DetectorRows":
        boxes = _boxes(_named(arrays, roles["boxes"]))
        scores = _named(arrays, roles["scores"])
        selected = _named(arrays, roles["selected"]) if "selected" in roles else None
        if "classes" in roles:
            classes, flat = _named(arrays, roles["classes"]).reshape(-1), scores.reshape(-1)
            if not len(classes) == len(flat) == len(boxes):
                message = f"{len(boxes)} boxes, {len(flat)} scores and {len(classes)} classes"
                raise UsageError(
                    f"outputs {', '.join(roles.values())} have {message}, expected one of each for each box"
                )
            count = len(boxes)
            if "count" in roles:
                count = min(count, int(_named(arrays, roles["count"]).reshape(-1)[0]))
            return cls(boxes[:count], flat[:count], classes[:count])
        table = _table(scores)
        if table.shape[0] != len(boxes):
            table = table.T
        if table.shape[0] != len(boxes):
            raise UsageError(
                f"output {roles['boxes']!r} has {len(boxes)} boxes, and output {roles['scores']!r} shape "
                f"{scores.shape}, expected one row of scores for each box"
            )
        return cls(boxes.astype(np.float64), table, selected=selected)

    def said(self, probabilities: Probabilities) -> PlacedScores:
        """All that is said of each place."""
        if self.classes is not None:
            labels = np.rint(self.classes).astype(np.int64)
            return PlacedScores(np.arange(len(labels)), labels, probabilities(self.scores[:, None])[:, 0])
        scores = probabilities(self.scores)
        if self.objectness is not None:
            scores = scores * probabilities(self.objectness)
        if self.selected is not None:
            _, labels, places = self.selected.reshape(-1, 3).T.astype(np.int64)
        else:
            places, labels = np.nonzero(scores > LEAST_SCORE)
        return PlacedScores(places, labels, scores[places, labels])


def _named(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in arrays:
        raise UsageError(f"the model has no output {name!r}; its outputs: {_listed(arrays)}")
    return arrays[name]


def _listed(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.dtype.name}{list(array.shape)}" for name, array in arrays.items())


def _table(array: np.ndarray) -> np.ndarray:
    """(n, m), without axes of one element."""
    while array.ndim > 2:
        axis = next((axis for axis in range(array.ndim) if array.shape[axis] == 1), None)
        if axis is None:
            raise UsageError(f"an output of shape {array.shape} does not show the boxes of one image")
        array = array.squeeze(axis)
    return array


def _boxes(array: np.ndarray) -> np.ndarray:
    """(n, 4); its transpose is taken as well."""
    table = _table(array)
    table = table if table.shape[-1] == SIDES else table.T
    if table.ndim != 2 or table.shape[-1] != SIDES:
        raise UsageError(f"an output of shape {array.shape} has no axis of 4 numbers, so these are not boxes")
    return table


def _roles(named: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """Roles and names of several outputs. Raises UsageError where these cannot be told."""
    for name in named.values():
        _named(arrays, name)
    left = [name for name in arrays if name not in named.values()]

    def only(role: str, names: list[str]) -> str | None:
        if role in named:
            return named[role]
        if len(names) == 1:
            left.remove(names[0])
            return names[0]
        return None

    floats = [name for name in left if arrays[name].dtype.kind == "f"]
    fours = [name for name in floats if arrays[name].ndim >= 2 and SIDES in arrays[name].shape[-2:]]
    said = [name for name in fours if says(name, PLACES)]
    boxes = only("boxes", said or fours)
    singles = [name for name in left if arrays[name].size == 1 and says(name, COUNT_WORDS)]
    count = only("count", singles)
    triples = [n for n in left if arrays[n].dtype.kind == "i" and arrays[n].ndim == 2 and arrays[n].shape[1] == 3]
    selected = only("selected", triples)
    flat = [name for name in left if boxes is not None and arrays[name].size == len(_boxes(arrays[boxes]))]
    classes = only("classes", [name for name in flat if arrays[name].dtype.kind in "iu" or says(name, CLASS_WORDS)])
    floats = [name for name in left if arrays[name].dtype.kind == "f"]
    scores = only("scores", [name for name in floats if says(name, SCORE_WORDS)] or floats)
    if boxes is None or scores is None:
        raise UsageError(
            f"the outputs ({_listed(arrays)}) do not show which has {'boxes' if boxes is None else 'scores'}: say so "
            "with --detector-outputs boxes=NAME and --detector-outputs scores=NAME, and likewise classes, count or "
            "selected"
        )
    for role, name in (("boxes", boxes), ("scores", scores)):
        yield role, name
    for role, result in (("classes", classes), ("count", count), ("selected", selected)):
        if result is not None:
            yield role, result
