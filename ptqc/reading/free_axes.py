"""Sizes of -1 or 0, with which some exporters (PaddlePaddle's, TensorFlow's) say that an axis may have any size."""

from collections.abc import Container

import onnx

from ptqc.reading.walk import every_graph


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
    return dim.HasField("dim_value") and dim.dim_value <= 0


def _unused(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name
