"""Random vectors whose mean outer product is the curvature of a loss, in place of its matrix of second derivatives.

Where both outputs are equal a loss has no slope, and with second derivatives H there a change δ of the outputs loses
½ δᵀ H δ. From random signs z each rule makes v = H^½ z, so that E[v vᵀ] = H and E[½ (v · δ)²] is what δ loses. For
class scores, H = diag(p) − p pᵀ gives v = √p z − p (√p · z): unlike with classes drawn by p (Fisher's information), the
classes that a sure network never draws count in every vector.
"""

from functools import singledispatch

import numpy as np

from ptqc.errors import Unsupported
from ptqc.losses.base import Group, OutputKind, rows
from ptqc.losses.boxes import Boxes
from ptqc.losses.classes import Classes, Probabilities
from ptqc.losses.detection import BOX, Detection
from ptqc.losses.divergence import SMALLEST_PROBABILITY, SMALLEST_SCORE
from ptqc.losses.embedding import SMALLEST_LENGTH, Embedding
from ptqc.losses.packed_cache import PackedCache
from ptqc.losses.recognition import Outputs
from ptqc.losses.relative import Relative
from ptqc.losses.scores import Scores
from ptqc.losses.total import OutputLoss


def directions(loss: OutputLoss, outputs: Outputs, random: np.random.Generator) -> dict[str, np.ndarray]:
    """A vector for each output of the float model that is judged and not empty, float32 of the output's shape.

    With all of them together, E[½ (Σ v · δ)²] is what changes δ of the outputs lose. Packed caches have none: their
    codes are whole numbers, which follow nothing small. Raises Unsupported for a kind of output without a rule.
    """
    result = {}
    for name, kind in loss.kinds.items():
        if outputs[name].size and not isinstance(kind, PackedCache):
            signs = random.choice(np.array([-1.0, 1.0]), outputs[name].shape)
            vector = _direction(kind, kind.read(name, outputs), signs)
            result[name] = np.asarray(np.sqrt(loss.rate(kind)) * vector, np.float32)
    return result


@singledispatch
def _direction(kind: OutputKind, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The vector of one output, of the signs' shape. value: what is judged, as `kind.read` gives it."""
    del value, signs
    raise Unsupported(f"of the loss of {kind.name} no second derivatives are known")


@_direction.register
def _(kind: Classes, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    p = np.exp(kind.log_probabilities(value))
    spread = np.sqrt(p) * signs
    result = spread - p * spread.sum(kind.axis, keepdims=True)
    if isinstance(kind, Probabilities):  # the loss is that of the logarithms
        result = result / np.maximum(value, SMALLEST_PROBABILITY)
    return np.asarray(result / np.sqrt(value.size / value.shape[kind.axis] * kind.share))


@_direction.register
def _(kind: Scores, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    places = len(kind.scores(value))
    return np.asarray(signs * _slope_of_scores(value) / np.sqrt(places * kind.share))


@_direction.register
def _(kind: Relative, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    assert kind.variance is not None
    if kind.variance.ndim == 0:
        return np.asarray(signs * np.sqrt(2 / (value.size * kind.variance)))
    assert kind.axis is not None
    channels = value.shape[kind.axis]
    groups = kind.groups if len(kind.groups) > 1 else (Group(0, channels),)
    weight = np.empty(channels)
    for group in groups:
        weight[group.channels] = 1 / (len(groups) * (group.stop - group.start) * (value.size / channels))
    return np.asarray(signs * _along(np.sqrt(2 * weight / kind.variance), value.ndim, kind.axis))


@_direction.register
def _(kind: Embedding, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    length = np.maximum(np.linalg.norm(value, axis=kind.axis, keepdims=True), SMALLEST_LENGTH)
    if kind.normalized:  # what changes the length only loses nothing
        unit = value / length
        signs = signs - unit * (unit * signs).sum(kind.axis, keepdims=True)
    return np.asarray(signs / (length * np.sqrt(value.size / value.shape[kind.axis])))


@_direction.register
def _(kind: Boxes, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    assert kind.variance is not None
    result = rows(signs, kind.axis)
    places, coordinates = result.shape
    weight = value[:, -1:] / (places * coordinates * kind.share)
    return _in_place(result * np.sqrt(2 * BOX * weight / kind.variance), signs, kind.axis)


@_direction.register
def _(kind: Detection, value: np.ndarray, signs: np.ndarray) -> np.ndarray:
    assert kind.variance is not None
    anchors, result = rows(value, kind.axis), rows(signs, kind.axis)
    scores, places = kind.scores(anchors), len(anchors) * kind.share
    weight = scores.max(1, keepdims=True)
    of_scores = sorted((group for group in kind.groups if group.scores), key=lambda group: group.stop - group.start)
    for group in kind.groups:
        if not group.scores:
            size = group.stop - group.start
            result[:, group.channels] *= np.sqrt(2 * BOX * weight / (places * size * kind.variance[group.channels]))
    classes = of_scores[-1]
    if scores.shape[1] == classes.stop - classes.start and len(of_scores) > 1:  # a class score times the objectness
        (objectness, names), along = of_scores, result[:, classes.channels]
        along = along * _slope_of_scores(scores) / np.sqrt(places)
        result[:, names.channels] = along * anchors[:, objectness.channels]
        result[:, objectness.channels] = (along * anchors[:, names.channels]).sum(1, keepdims=True)
    else:
        for group in of_scores:
            result[:, group.channels] *= _slope_of_scores(anchors[:, group.channels]) / np.sqrt(places)
    return _in_place(result, signs, kind.axis)


def _slope_of_scores(p: np.ndarray) -> np.ndarray:
    """Square root of the second derivative of a binary divergence."""
    p = np.clip(p.astype(np.float64), SMALLEST_SCORE, 1 - SMALLEST_SCORE)
    return np.asarray(1 / np.sqrt(p * (1 - p)))


def _along(vector: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """A number per channel, shaped to broadcast against an output of this rank."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def _in_place(array: np.ndarray, like: np.ndarray, axis: int) -> np.ndarray:
    """Inverse of `rows`."""
    moved = np.moveaxis(like, axis, -1)
    return np.moveaxis(array.reshape(moved.shape), -1, axis)
