"""Classical learners (`ai.onnx.ml`: scalers, linear models, linear support vectors) in ONNX's own operators.

What such an operator keeps in its attributes becomes the weight of a Gemm, which the other passes know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.frontend.classical import DOMAIN
from ptqc.ir.nodes import integer, integers, number, producer, rank, text
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools import Rule, Writer, write_out

# The operators of `ai.onnx.ml` that prepare features, in ONNX's own operators.

NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


def floats(node: ir.Node, name: str) -> np.ndarray:
    """An attribute that lists floats; empty where it is absent."""
    attribute = node.attributes.get(name)
    return np.array([] if attribute is None else list(attribute.as_floats()), np.float32)


def real_input(write: Writer, index: int = 0) -> ir.Value:
    """An input of the node in float32."""
    value = write.input(index)
    return value if value.dtype == ir.DataType.FLOAT else write.op("Cast", value, to=ir.DataType.FLOAT.value)


def scaler(write: Writer) -> list[ir.Value] | str:
    """(x - offset) · scale, for each column or for all."""
    offset, scale = floats(write.node, "offset"), floats(write.node, "scale")
    if rank(write.node.inputs[0]) != 2:
        return "its input is not known to have one row per sample"
    shifted = write.op("Sub", real_input(write), write.constant(offset, "offset"))
    return [write.op("Mul", shifted, write.constant(scale, "scale"))]


def normalizer(write: Writer) -> list[ir.Value] | str:
    """Rows divided by their norm, but for those whose norm is zero."""
    if rank(write.node.inputs[0]) != 2:
        return "its input is not known to have one row per sample"
    norm, rows = text(write.node, "norm", "MAX"), real_input(write)
    if norm == "L1" and producer(rows, "Softmax") is not None:
        return [rows]  # they sum to one
    size = write.op(NORMS[norm], rows, write.axis(1), keepdims=1)
    nothing = write.op("Equal", size, write.real(0.0, "zero"))
    return [write.op("Div", rows, write.op("Where", nothing, write.real(1.0, "one"), size))]


def imputer(write: Writer) -> list[ir.Value] | str:
    """What stands for a missing number replaced, in each column by its own or in all by the same."""
    values = floats(write.node, "imputed_value_floats")
    if not values.size or write.input().dtype != ir.DataType.FLOAT:
        return "it is not one of floats"
    missing, rows = number(write.node, "replaced_value_float", 0.0), real_input(write)
    result = write.op("IsNaN", rows) if np.isnan(missing) else write.op("Equal", rows, write.real(missing, "missing"))
    return [write.op("Where", result, write.constant(values, "imputed"), rows)]


def binarizer(write: Writer) -> list[ir.Value] | str:
    """1 above the threshold, else 0."""
    above = write.op("Greater", real_input(write), write.real(number(write.node, "threshold", 0.0), "threshold"))
    return [write.op("Cast", above, to=ir.DataType.FLOAT.value)]


def feature_vectorizer(write: Writer) -> list[ir.Value] | str:
    """Columns side by side."""
    if any(rank(value) != 2 for value in write.node.inputs):
        return "its inputs are not known to have one row per sample"
    return [write.op("Concat", *[real_input(write, i) for i in range(len(write.node.inputs))], axis=1)]


def array_feature_extractor(write: Writer) -> list[ir.Value] | str:
    """Columns by their numbers; of a vector it makes one row."""
    values, columns = write.input(), write.input(1)
    if rank(values) is None:
        return "the rank of its input is not known"
    flat = columns if rank(columns) == 1 else write.op("Reshape", columns, write.constant(np.array([-1]), "flat"))
    taken = write.op("Gather", values, flat, axis=-1)
    return [write.op("Unsqueeze", taken, write.axis(0)) if rank(values) == 1 else taken]


# What the classifiers of `ai.onnx.ml` make of their scores, in ONNX's own operators, as ONNX Runtime computes it.

# Scores nearer to zero than this count as zero for SOFTMAX_ZERO.
ZERO = 1e-7
# The approximation of the inverse error function after S. Winitzki (2008), with ONNX Runtime's digits.
WINITZKI = 0.147
PI = 3.14159


def transformed(write: Writer, scores: ir.Value, kind: str) -> ir.Value:
    """Two or more scores of each sample after the transform; `scores` itself for NONE."""
    return TRANSFORMS[kind](write, scores)


def with_second_class(write: Writer, score: ir.Value, kind: str, opposite: bool) -> ir.Value:
    """Scores of two classes made of the one of the second class.

    opposite: the first is -score instead of 1 - score, for other transforms than LOGISTIC.
    """
    negative = write.op("Neg", score)
    if kind == "LOGISTIC":
        return write.op("Sigmoid", write.op("Concat", negative, score, axis=1))
    first = negative if opposite else write.op("Add", negative, write.real(1.0, "one"))
    return write.op("Concat", first, score, axis=1)


def _softmax_zero(write: Writer, scores: ir.Value) -> ir.Value:
    """Softmax over the scores that are not zero; zeros stay zero."""
    axis = write.axis(1)
    largest = write.op("ReduceMax", scores, axis, keepdims=1)
    counted = write.op("Greater", write.op("Abs", scores), write.real(ZERO, "zero"))
    powers = write.op("Exp", write.op("Sub", scores, largest))
    least = write.op("Mul", scores, write.op("Exp", write.op("Neg", largest)))
    total = write.op("ReduceSum", write.op("Where", counted, powers, write.real(0.0, "nothing")), axis, keepdims=1)
    return write.op("Div", write.op("Where", counted, powers, least), total)


def probit(write: Writer, scores: ir.Value) -> ir.Value:
    """The inverse of the normal distribution: sqrt(2) erfinv(2 p - 1)."""
    x = write.op("Sub", write.op("Mul", scores, write.real(2.0, "two")), write.real(1.0, "one"))
    rest = write.op("Mul", write.op("Sub", write.real(1.0, "one"), x), write.op("Add", write.real(1.0, "one"), x))
    log = write.op("Log", rest)
    middle = write.op("Add", write.op("Mul", log, write.real(0.5, "half")), write.real(2 / (PI * WINITZKI), "shift"))
    squared = write.op("Sub", write.op("Mul", middle, middle), write.op("Mul", log, write.real(1 / WINITZKI, "slope")))
    size = write.op("Sqrt", write.op("Sub", write.op("Sqrt", squared), middle))
    is_lower = write.op("Less", x, write.real(0.0, "middle"))
    root = float(np.sqrt(2.0))
    return write.op("Mul", size, write.op("Where", is_lower, write.real(-root, "lower"), write.real(root, "upper")))


TRANSFORMS: dict[str, Callable[[Writer, ir.Value], ir.Value]] = {
    "NONE": lambda _write, scores: scores,
    "SOFTMAX": lambda write, scores: write.op("Softmax", scores, axis=1),
    "LOGISTIC": lambda write, scores: write.op("Sigmoid", scores),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}


# Linear classifiers and regressors of `ai.onnx.ml` as Gemm, with what follows it in ONNX's own operators.

NOT_ROWS = "its input is not known to have one row per sample"


def linear_regressor(write: Writer) -> list[ir.Value] | str:
    """x Wᵀ + c, transformed."""
    if rank(write.node.inputs[0]) != 2:
        return NOT_ROWS
    targets, kind = integer(write.node, "targets", 1), text(write.node, "post_transform", "NONE")
    scores = gemm(write, floats(write.node, "coefficients").reshape(targets, -1), floats(write.node, "intercepts"))
    if targets > 1:
        return [transformed(write, scores, kind)]
    return [probit(write, scores) if kind == "PROBIT" else scores]  # ONNX Runtime applies no other to one score


def linear_classifier(write: Writer) -> list[ir.Value] | str:
    """Labels and scores of x Wᵀ + c; one row of W decides between two classes."""
    intercepts, kind = floats(write.node, "intercepts"), text(write.node, "post_transform", "NONE")
    if rank(write.node.inputs[0]) != 2:
        return NOT_ROWS
    if not intercepts.size or (intercepts.size == 1 and (kind == "PROBIT" or class_labels(write.node).size != 2)):
        return "ONNX Runtime has a way of its own with such a classifier"
    scores = gemm(write, floats(write.node, "coefficients").reshape(intercepts.size, -1), intercepts)
    if intercepts.size > 1:
        return [labels_of(write, write.op("ArgMax", scores, axis=1, keepdims=0)), transformed(write, scores, kind)]
    second = write.op("Greater", write.op("Squeeze", scores, write.axis(1)), write.real(0.0, "boundary"))
    places = write.op("Cast", second, to=ir.DataType.INT64.value)
    return [labels_of(write, places), with_second_class(write, scores, kind, opposite=False)]


def gemm(write: Writer, rows: np.ndarray, intercepts: np.ndarray) -> ir.Value:
    """The node's input times a matrix of shape (scores, features), plus one intercept per score if there are any."""
    inputs = [real_input(write), write.constant(np.ascontiguousarray(rows), "coefficients")]
    if intercepts.size == len(rows):
        inputs.append(write.constant(intercepts, "intercepts"))
    return write.op("Gemm", *inputs, transB=1)


def class_labels(node: ir.Node) -> np.ndarray:
    """The classes' names, strings or integers."""
    names, numbers = node.attributes.get("classlabels_strings"), node.attributes.get("classlabels_ints")
    if names is not None and names.as_strings():
        return np.array([name.encode() for name in names.as_strings()], object)
    return np.array([] if numbers is None else list(numbers.as_ints()), np.int64)


def labels_of(write: Writer, places: ir.Value) -> ir.Value:
    """The names of the classes at these places."""
    labels = class_labels(write.node)
    if labels.dtype == np.int64 and np.array_equal(labels, np.arange(labels.size)):
        return places
    return write.op("Gather", write.constant(labels, "labels"), places)


# Support vector machines with a linear kernel as Gemm: their vectors sum up to one row of weights per decision.
#
# A decision between two classes is a sum of products with support vectors, each times a coefficient: a product with the
# sum of the vectors, each times its coefficient.

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
    attributes = {name: attribute.value for name, attribute in node.attributes.items() if name not in REPLACED}
    replaced: dict[str, Any] = {
        "coefficients": coefficients.ravel().tolist(),
        "support_vectors": np.eye(len(pairs), dtype=np.float32).ravel().tolist(),
        "vectors_per_class": [count - 1 - first for first in range(count)],
        "rho": [0.0] * len(pairs),
    }
    decisions = gemm(write, rows, rho)
    return list(write.ops("SVMClassifier", 2, decisions, domain=DOMAIN, **attributes, **replaced))


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


RULES: dict[str, Rule] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "Scaler": scaler,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
}


@dataclass(frozen=True)
class Classical:
    """Replace operators of `ai.onnx.ml`; those that only rename labels or categories stay."""

    name: ClassVar[str] = "classical"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each operator of `ai.onnx.ml`."""
        notes = write_out(probed.model, self.name, DOMAIN, RULES)
        return probed.rewritten(notes, unsaid=bool(notes))
