"""Tensors that a few bytes of model blow up: a ConstantOfShape, Expand, Range or Tile of constant, absurd size."""

import math

import onnx

from ptqc.errors import ModelError
from ptqc.ir.proto_walk import every_graph

MAX_ELEMENTS = 1 << 30  # 4 GiB of float32 in one inner value


def check_sizes(model: onnx.ModelProto) -> None:
    """Refuse models with a value of known shape that memory could not hold.

    Without data propagation: with it, shape inference itself runs out of memory on such models.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=False)
    except Exception as error:  # the library's own error types
        raise ModelError(f"shapes do not fit together: {error}; export the model again") from error
    for graph in every_graph(inferred):
        for value in (*graph.input, *graph.value_info, *graph.output):
            count = math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)
            if count > MAX_ELEMENTS:
                raise ModelError(f"{value.name!r} would have {count:,} elements; at most {MAX_ELEMENTS:,} are accepted")
