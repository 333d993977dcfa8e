"""Sizes of -1 or 0, and names such as "?", with which some exporters say that an axis may have any size.

PaddlePaddle's and TensorFlow's write them. One "?" says nothing of another one.
"""

import re
from collections.abc import Container

import onnx

from ptqc.ir.proto_walk import every_graph

NO_NAMES = frozenset(("None", "-1"))


def name_free_axes(model: onnx.ModelProto) -> None:
    """Give such axes of inputs a name of their own each, and leave those of other values open.

    Shape inference fills in what follows from the inputs.
    """
    taken = {dim.dim_param for value in model.graph.input for dim in _dims(value)}
    for value in model.graph.input:
        for axis, dim in enumerate(_dims(value)):
            if _is_free(dim):
                dim.dim_param = _unused(f"{value.name}_{axis}", taken)
    for graph in every_graph(model):
        for value in (*graph.input, *graph.value_info, *graph.output):
            for dim in filter(_is_free, _dims(value)):
                dim.Clear()


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _is_free(dim: onnx.TensorShapeProto.Dimension) -> bool:
    if dim.HasField("dim_value"):
        return bool(dim.dim_value <= 0)
    return dim.HasField("dim_param") and (dim.dim_param in NO_NAMES or not re.search(r"\w", dim.dim_param))


def _unused(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name
