"""Support vector machines with a linear kernel as Gemm: their vectors sum up to one row of weights per decision.

A decision between two classes is a sum of products with support vectors, each times a coefficient: a product with the
sum of the vectors, each times its coefficient.
"""

from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir

from ptqc.frontend.classical import DOMAIN
from ptqc.ir.nodes import integer, integers, rank, text
from ptqc.passes.canonicalize.classical.features import floats
from ptqc.passes.canonicalize.classical.linear import NOT_ROWS, class_labels, gemm, labels_of
from ptqc.passes.canonicalize.classical.post_transform import transformed, with_second_class
from ptqc.passes.canonicalize.tools.writing import Writer

REPLACED = ("coefficients", "rho", "support_vectors", "vectors_per_class")


def svm_regressor(write: Writer) -> list[ir.Value] | str:
    """The sum of all vectors times the input; with one_class its sign."""
    node, coefficients = write.node, floats(write.node, "coefficients")
    if rank(node.inputs[0]) != 2:
        return NOT_ROWS
    count = integer(node, "n_supports", 0)
    if count:
        vectors = floats(node, "support_vectors").reshape(count, -1).astype(np.float64)
        coefficients = (coefficients.astype(np.float64) @ vectors).astype(np.float32)
    value = gemm(write, coefficients.reshape(1, -1), floats(node, "rho")[:1])
    if not integer(node, "one_class", 0):
        return [value]
    inside = write.op("Greater", value, write.real(0.0, "boundary"))
    return [write.op("Where", inside, write.real(1.0, "inside"), write.real(-1.0, "outside"))]


def svm_classifier(write: Writer) -> list[ir.Value] | str:
    """One decision for each pair of classes, which vote for the label."""
    node, kind = write.node, text(write.node, "post_transform", "NONE")
    count = class_labels(node).size
    if rank(node.inputs[0]) != 2:
        return NOT_ROWS
    if not integers(node, "vectors_per_class", ()) or count < 2 or (count == 2 and kind == "PROBIT"):
        return "ONNX Runtime has a way of its own with such a classifier"
    rows, rho = _decisions(node, count)
    if "prob_a" in node.attributes:
        return _coupled(write, rows, rho, count)
    scores = gemm(write, rows, rho)
    labels = labels_of(write, write.op("ArgMax", _votes(write, scores, count), axis=1, keepdims=0))
    if count == 2:
        return [labels, with_second_class(write, scores, kind, opposite=kind == "NONE")]
    return [labels, transformed(write, scores, kind)]


def _coupled(write: Writer, rows: np.ndarray, rho: np.ndarray, count: int) -> list[ir.Value] | str:
    """The decisions given to a machine that takes them for its own, and couples their probabilities as it did.

    Coupling goes in steps whose number depends on the sample, so it stays. The machine has one vector for each pair of
    classes, with a single one, and reads from it the decision of that pair.
    """
    node, pairs = write.node, list(combinations(range(count), 2))
    coefficients = np.zeros((count - 1, len(pairs)), np.float32)
    for place, (_, second) in enumerate(pairs):
        coefficients[second - 1, place] = 1.0
    before = sum(floats(node, name).size for name in ("support_vectors", "coefficients"))
    if rows.size + len(pairs) ** 2 + coefficients.size >= before:
        return "it has so few support vectors that one row of weights per pair of classes would be larger"
    kept = {name: attribute.value for name, attribute in node.attributes.items() if name not in REPLACED}
    replaced: dict[str, Any] = {
        "coefficients": coefficients.ravel().tolist(),
        "support_vectors": np.eye(len(pairs), dtype=np.float32).ravel().tolist(),
        "vectors_per_class": [count - 1 - first for first in range(count)],
        "rho": [0.0] * len(pairs),
    }
    decisions = gemm(write, rows, rho)
    return list(write.ops("SVMClassifier", 2, decisions, domain=DOMAIN, **kept, **replaced))


def _decisions(node: ir.Node, count: int) -> tuple[np.ndarray, np.ndarray]:
    """One row of weights and one constant for each pair of classes; the first of both wins where they sum above 0."""
    sizes = integers(node, "vectors_per_class", ())
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    vectors = floats(node, "support_vectors").reshape(bounds[-1], -1).astype(np.float64)
    coefficients = floats(node, "coefficients").reshape(count - 1, bounds[-1]).astype(np.float64)
    rows = []
    for first, second in combinations(range(count), 2):
        of_first, of_second = slice(*bounds[first : first + 2]), slice(*bounds[second : second + 2])
        rows.append(
            coefficients[second - 1, of_first] @ vectors[of_first] + coefficients[first, of_second] @ vectors[of_second]
        )
    return np.array(rows, np.float32), floats(node, "rho")[: len(rows)]


def _votes(write: Writer, scores: ir.Value, count: int) -> ir.Value:
    """How many decisions each class wins, (samples, classes)."""
    pairs = list(combinations(range(count), 2))
    wins = write.op("Cast", write.op("Greater", scores, write.real(0.0, "boundary")), to=ir.DataType.INT64.value)
    losses = write.op("Sub", write.constant(np.array(1), "one"), wins)
    mine = [
        [i for i, (first, _) in enumerate(pairs) if first == c]
        + [len(pairs) + i for i, (_, second) in enumerate(pairs) if second == c]
        for c in range(count)
    ]
    both = write.op("Concat", wins, losses, axis=1)
    own = write.op("Gather", both, write.constant(np.array(mine, np.int64), "pairs"), axis=1)
    return write.op("ReduceSum", own, write.axis(2), keepdims=0)
