"""Random directions against second derivatives of each loss, taken from its values."""

import itertools
import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from outputs import fitted, loss

from ptqc.errors import Unsupported
from ptqc.kv_cache.scaled import ScaledRows
from ptqc.losses import OutputKind, OutputLoss
from ptqc.losses.base import NAT, Group
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Logits, Probabilities
from ptqc.losses.detection import Detection
from ptqc.losses.directions import directions
from ptqc.losses.embedding import Embedding
from ptqc.losses.features import Features
from ptqc.losses.labels import Labels
from ptqc.losses.maps import Map
from ptqc.losses.packed_cache import PackedCache
from ptqc.losses.recognition import KNOWN
from ptqc.losses.regression import Regression
from ptqc.losses.scores import Scores
from ptqc.losses.state import State

STEP = 1e-3
RNG = np.random.default_rng(0)
HEAD = (Group(0, 2), Group(2, 3, scores=True), Group(3, 5, scores=True))
PLAIN = (Group(0, 2), Group(2, 4, scores=True))


def numbers(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def shares(*shape: int) -> np.ndarray:
    return RNG.uniform(0.1, 0.9, shape).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def anchors(groups: tuple[Group, ...]) -> np.ndarray:
    """Of one sample: (1, 3, channels), with scores where the groups say so."""
    result = numbers(1, 3, groups[-1].stop)
    for group in groups:
        if group.scores:
            result[..., group.channels] = shares(1, 3, group.stop - group.start)
    return result


def columns(shape: tuple[int, ...]) -> list[Any]:
    """Stand for random numbers: each draws one sign and zeros."""
    identity = np.eye(math.prod(shape)).reshape(-1, *shape)
    return [SimpleNamespace(choice=lambda *_, column=column: column.copy()) for column in identity]


CASES = {
    "logits": (Logits(1), numbers(2, 4, scale=2)),
    "logits of pixels": (Logits(1), numbers(1, 3, 2, 2)),
    "logits of a detector": (Logits(2, background=0), numbers(1, 3, 3)),
    "probabilities": (Probabilities(1), softmax(numbers(2, 4))),
    "scores": (Scores(1), shares(2, 4)),
    "one score": (Scores(None), shares(3)),
    "scores of places": (Scores(2, places=True), shares(1, 4, 2)),
    "detection with objectness": (Detection(2, HEAD), anchors(HEAD)),
    "detection": (Detection(2, PLAIN), anchors(PLAIN)),
    "detection, channels first": (Detection(1, PLAIN), np.moveaxis(anchors(PLAIN), 1, 2)),
    "embedding": (Embedding(1), numbers(2, 5)),
    "embedding of one length": (Embedding(1, normalized=True), unit(numbers(2, 5))),
    "regression": (Regression(None), numbers(3, 2)),
    "regression of groups": (Regression(1, (Group(0, 1), Group(1, 4))), numbers(2, 4)),
    "features": (Features(2), numbers(1, 3, 4)),
    "map": (Map(1), numbers(1, 2, 2, 2)),
    "state": (State(1), numbers(2, 4)),
}


def second_derivatives(measure: OutputLoss, y: np.ndarray) -> np.ndarray:
    """By central differences in float64; the loss and its slope are zero at y."""
    y = y.astype(np.float64)
    steps = STEP * np.maximum(np.abs(y), 0.1).ravel() * np.eye(y.size)

    def at(change: np.ndarray) -> float:
        return loss(measure, y, y + change.reshape(y.shape))

    result = np.empty((y.size, y.size))
    for i, j in itertools.combinations_with_replacement(range(y.size), 2):
        a, b = steps[i], steps[j]
        mixed = at(a + b) - at(a - b) - at(b - a) + at(-a - b)
        result[i, j] = result[j, i] = mixed / (4 * a[i] * b[j])
    return result


@pytest.mark.parametrize("case", CASES)
def test_their_mean_outer_product_is_the_second_derivative(case: str) -> None:
    """A vector is linear in its signs, so columns of the identity in place of signs give its factor."""
    kind, y = CASES[case]
    measure = fitted(kind, y)
    root = np.stack([directions(measure, {"y": y}, column)["y"].ravel() for column in columns(y.shape)], 1)
    expected = second_derivatives(measure, y)
    assert np.abs(root.astype(np.float64) @ root.T - expected).max() < 1e-3 * np.abs(expected).max()


def test_every_kind_has_a_rule() -> None:
    tried = {type(kind) for kind, _ in CASES.values()} | {Boxes}
    assert tried == set(KNOWN) - {PackedCache, Labels}


def test_labels_change_by_steps() -> None:
    outputs = {"y": np.arange(4)}
    with pytest.raises(Unsupported, match="labels"):
        directions(OutputLoss.of({"y": Labels()}, [outputs]), outputs, np.random.default_rng(0))


def test_packed_caches_have_no_vector() -> None:
    codes, scale = ScaledRows(7).pack(numbers(1, 2, 3, 8))
    outputs = {"y": numbers(2, 5), "present": codes, "present.scale": scale}
    measure = OutputLoss.of({"y": Regression(1), "present": PackedCache(3, form="int4")}, [outputs])
    assert set(directions(measure, outputs, np.random.default_rng(0))) == {"y"}


def test_boxes_that_another_output_weighs() -> None:
    """One anchor that is found and one that is not: only the first moves the loss."""
    scores, boxes = np.array([[[0.9], [1e-9]]], np.float32), numbers(1, 2, 4)
    head = Scores(2, places=True)
    kinds = {"s": head, "b": Boxes(2, "s", head)}
    outputs = {"s": scores, "b": boxes}
    measure, random = OutputLoss.of(kinds, [outputs]), np.random.default_rng(1)
    moved = boxes + np.float32(0.01)
    expected = measure(outputs, {"s": scores, "b": moved})
    drawn = directions(measure, outputs, random)["b"]
    assert 0.5 * (drawn**2 * (moved - boxes) ** 2).sum() == pytest.approx(expected, rel=1e-3)


def test_outputs_in_different_units_count_as_in_the_sum() -> None:
    outputs = {"c": numbers(2, 3), "r": numbers(2, 4)}
    measure = OutputLoss.of({"c": Logits(1), "r": Regression(1)}, [outputs])
    both = directions(measure, outputs, np.random.default_rng(0))
    changed = {"c": outputs["c"], "r": outputs["r"] + 0.01}
    assert 0.5 * (both["r"] ** 2).sum() * 1e-4 == pytest.approx(measure(outputs, changed), rel=1e-3)
    changed = {"c": outputs["c"] + np.array([0.01, 0, 0], np.float32), "r": outputs["r"]}
    drawn = [directions(measure, outputs, np.random.default_rng(seed))["c"][:, 0].sum() for seed in range(500)]
    assert 0.5 * np.square(drawn).mean() * 1e-4 == pytest.approx(measure(outputs, changed), rel=0.2)


def test_a_kind_without_a_rule_is_refused() -> None:
    unknown = Mock(spec=OutputKind)
    unknown.name, unknown.unit = "own", NAT
    with pytest.raises(Unsupported, match="of the loss of own no second derivatives are known"):
        directions(OutputLoss({"y": unknown}), {"y": numbers(2, 3)}, np.random.default_rng(0))
