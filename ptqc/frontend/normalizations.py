"""Normalizations that ONNX Runtime's optimizer writes as if ONNX defined them there, in operators that it does define.

SimplifiedLayerNormalization (x over the root of its mean square) belongs to no version of ONNX, LayerNormalization to
none before 17.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ptqc.ir.proto_walk import every_graph

WHOLE = "LayerNormalization"
SIMPLIFIED = "SimplifiedLayerNormalization"
INTRODUCED = 17  # LayerNormalization
AXES_ARE_INPUT = 18  # of ReduceMean


def write_out_normalizations(model: onnx.ModelProto) -> None:
    """Replace them in the model, in place. Those over more than the last axis stay, and are refused as unknown."""
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    kinds = {tensor.name: tensor.data_type for graph in every_graph(model) for tensor in graph.initializer}
    for graph in every_graph(model):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            is_meant = _is_meant(node, version)
            nodes += _written(node, version, kinds.get(node.input[1], onnx.TensorProto.FLOAT)) if is_meant else [node]
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)


def _is_meant(node: onnx.NodeProto, version: int) -> bool:
    foreign = node.op_type == SIMPLIFIED or (node.op_type == WHOLE and version < INTRODUCED)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    return foreign and node.domain == "" and axis == -1 and not any(node.output[1:])


def _written(node: onnx.NodeProto, version: int, kind: int) -> list[onnx.NodeProto]:
    """((x - mean) / √(variance + ε)) · scale + bias, without mean and bias for the simplified one.

    kind: type of the numbers.
    """
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    made: list[onnx.NodeProto] = []

    def op(op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"{node.output[0]}/{len(made)}"
        made.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(number: float) -> str:
        return op("Constant", value=numpy_helper.from_array(np.array(number, helper.tensor_dtype_to_np_dtype(kind))))

    def mean(name: str) -> str:
        if version < AXES_ARE_INPUT:
            return op("ReduceMean", name, axes=[-1])
        return op("ReduceMean", name, op("Constant", value_ints=[-1]))

    x = node.input[0]
    if node.op_type == WHOLE:
        x = op("Sub", x, mean(x))
    square = op("Pow", x, constant(2.0))
    size = op("Sqrt", op("Add", mean(square), constant(epsilon)))
    op("Mul", op("Div", x, size), node.input[1])
    if len(node.input) > 2 and node.input[2]:
        op("Add", made[-1].output[0], node.input[2])
    made[-1].output[0] = node.output[0]
    return made
