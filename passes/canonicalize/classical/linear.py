"""Linear classifiers and regressors of `ai.onnx.ml` as Gemm, with what follows it in ONNX's own operators."""

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import integer, rank, text
from ptqc.passes.canonicalize.classical.features import floats, real_input
from ptqc.passes.canonicalize.classical.post_transform import probit, transformed, with_second_class
from ptqc.passes.canonicalize.tools.writing import Writer

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
