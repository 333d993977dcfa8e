"""Running a few nodes of a model in ONNX Runtime, for values that are needed when kernels are made."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ptqc.execution.onnxruntime import Feeds, Runner


def standalone(
    node: ir.Node, value_of: Callable[[ir.Value], np.ndarray]
) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """The node from a value x to a value y, and the constants that are its other inputs."""
    constants = {f"c{i}": value_of(v) for i, v in enumerate(node.inputs) if i and v is not None}
    proto = ir.to_proto(node)
    proto.input[:] = ["x", *(f"c{i}" if f"c{i}" in constants else "" for i in range(1, len(node.inputs)))]
    proto.output[:] = ["y"]
    return proto, constants


def compute(
    model: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    feeds: Feeds,
    outputs: Sequence[str],
) -> dict[str, np.ndarray]:
    """Values of the named outputs of nodes in the model's opset."""
    return opened(model, nodes, constants, feeds, outputs).run(feeds)


def opened(
    model: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    feeds: Feeds,
    outputs: Sequence[str],
) -> Runner:
    """What computes them, for any feeds of these types and shapes."""
    graph = onnx.GraphProto(name="g", node=nodes)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    for name, array in feeds.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return Runner(onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports))
