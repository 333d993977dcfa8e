"""The operators of `ai.onnx.ml` that prepare features, in ONNX's own operators."""

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import number, producer, rank, text
from ptqc.passes.canonicalize.tools.writing import Writer

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
    found = write.op("IsNaN", rows) if np.isnan(missing) else write.op("Equal", rows, write.real(missing, "missing"))
    return [write.op("Where", found, write.constant(values, "imputed"), rows)]


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
