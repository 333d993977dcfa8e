"""Detectors whose heads are outputs of their own: which outputs are boxes, and which scores weigh them.

Boxes have the places (anchors, pixels) of an output of scores that finds something at few of them, and a name that
says places, or four numbers each, which alone would be taken for the scores of four classes.
"""

from collections.abc import Collection, Mapping

import numpy as np

from ptqc.errors import UsageError
from ptqc.losses.axes import RARE
from ptqc.losses.base import Head, OutputFacts, OutputKind
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Logits
from ptqc.losses.features import Features
from ptqc.losses.maps import Map
from ptqc.losses.regression import Regression
from ptqc.losses.words import CLASSES, PLACES, says

CORNERS = 4
PLAIN = (Logits, Features, Map, Regression)


def with_boxes(
    kinds: Mapping[str, OutputKind], facts: Mapping[str, OutputFacts], free: Collection[str]
) -> dict[str, OutputKind]:
    """The kinds, with boxes weighed by the scores of another output, and these scores as those of a detector.

    free: outputs of which the user says nothing. Raises UsageError where what the user calls boxes has no scores.
    """
    boxes = dict(kinds)
    for name, kind in kinds.items():
        known, is_said = facts[name], isinstance(kind, Boxes)
        if known.axis is None or not (is_said or (name in free and _may_be_boxes(kind, known))):
            continue
        heads = {other: head for other in kinds if (head := _head(kinds[other], facts[other], known)) is not None}
        if heads:  # objectness is rarer than the classes beside it
            scores = min(heads, key=lambda other: float(_weights(heads[other], facts[other]).mean()))
            boxes |= {scores: heads[scores], name: Boxes(known.axis, scores, heads[scores])}
        elif is_said:
            raise UsageError(
                f"loss: output {name!r} cannot be {Boxes.name}: no other output has scores for the same positions that "
                f"find nothing at most of them; other kinds are {', '.join(one.name for one in PLAIN)}"
            )
    return boxes


def _may_be_boxes(kind: OutputKind, facts: OutputFacts) -> bool:
    four = facts.channels == CORNERS and not says(facts.name, CLASSES)
    return isinstance(kind, PLAIN) and (four or says(facts.name, PLACES))


def _head(kind: OutputKind, facts: OutputFacts, boxes: OutputFacts) -> Head | None:
    """An output as the scores of these boxes, if it can be that."""
    if not isinstance(kind, Head) or boxes.positions < 2 or len(facts.values) != len(boxes.values):
        return None
    assert boxes.axis is not None
    places = _places(boxes, boxes.axis)
    for axis in (facts.axis, None):
        if _places(facts, axis) == places and (head := kind.beside_boxes(axis, facts)) is not None:
            return head if np.median(_weights(head, facts)) < RARE else None
    return None


def _places(facts: OutputFacts, axis: int | None) -> list[list[int]]:
    """The shape of each value, but for an axis."""
    return [[size for i, size in enumerate(value.shape) if i != axis] for value in facts.values]


def _weights(head: Head, facts: OutputFacts) -> np.ndarray:
    return np.concatenate([head.weights(value) for value in facts.values])
