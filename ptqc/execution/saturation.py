"""Sums of products of 8-bit weights, which ONNX Runtime keeps in 16 bits on x64 processors without VNNI.

A pair of products is added first, and 255 · 127 · 2 does not fit; products of 7-bit weights do. An option makes the
sums exact, by unsigned weights. With it a session cannot be opened where layers share a weight, dequantized or not, or
a zero point (ONNX Runtime then makes two constants of one name), so sessions of ptqc give each layer its own.
"""

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

# Makes sums exact by unsigned weights; processors with VNNI would run slower with it.
EXACT_SUMS = {"session.x64quantprecision": "1"}
# Makes them exact for every file, at the speed of float.
IN_FLOAT = {"session.disable_quant_qdq": "1"}
# The optimizer that would make one constant of equal ones.
NOT_WITH_EXACT_SUMS = ("CommonSubexpressionElimination",)
LARGEST_SAFE = 64
LENGTH = 4
PICKING = "Gather"


@cache
def saturates() -> bool:
    """Whether sessions on this machine do without the option; one product shows it, as the processor alone does not."""
    return product({}) != LENGTH * 255 * 127


def product(settings: dict[str, str]) -> int:
    """The largest codes times the largest weights, LENGTH of each, in a session with these entries."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    session = ort.InferenceSession(_product().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return int(session.run(["y"], {"x": np.full((1, LENGTH), 255, np.uint8)})[0].item())


def _product() -> onnx.ModelProto:
    # ONNX Runtime 1.23 reads zero points without asking whether there are any, and ends the process.
    arrays = {"w": np.full((LENGTH, 1), 127, np.int8), "x_zero": np.uint8(0), "w_zero": np.int8(0)}
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, (1, LENGTH))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 1))
    node = helper.make_node("MatMulInteger", ["x", *arrays], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def can_saturate(proto: onnx.ModelProto) -> bool:
    """Whether a model has 8-bit weights."""
    codes = map(numpy_helper.to_array, _codes(proto).values())
    return any(int(np.abs(array.astype(np.int16)).max(initial=0)) > LARGEST_SAFE for array in codes)


def apart(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which no two nodes read one int8 constant, or what DequantizeLinear makes of one."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    _real_weights_apart(result)
    _constants_apart(result)
    return result


def _constants_apart(model: onnx.ModelProto) -> None:
    """Give each reader of an int8 constant its own."""
    tensors = _codes(model)
    seen = set[str]()
    for number, node in enumerate(model.graph.node):
        for place, name in enumerate(node.input):
            if name in tensors and name in seen:
                node.input[place] = f"{name}/apart/{number}"
                model.graph.initializer.add().CopyFrom(tensors[name])
                model.graph.initializer[-1].name = node.input[place]
            seen.add(name)


def _real_weights_apart(model: onnx.ModelProto) -> None:
    """Give each reader of a dequantized int8 constant its own DequantizeLinear."""
    tensors, nodes = _codes(model), list(model.graph.node)
    makers = {node.output[0]: node for node in nodes if node.op_type == "DequantizeLinear" and node.input[0] in tensors}
    seen = set[str]()
    del model.graph.node[:]
    for number, node in enumerate(nodes):
        for place, name in enumerate(node.input):
            if name in makers and name in seen:
                node.input[place] = f"{name}/apart/{number}/{place}"
                model.graph.node.add().CopyFrom(makers[name])
                model.graph.node[-1].name, model.graph.node[-1].output[0] = node.input[place], node.input[place]
            seen.add(name)
        model.graph.node.add().CopyFrom(node)


def _codes(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Int8 constants by name, without tables of which nodes or functions only pick rows: nothing multiplies these."""
    picking = {(one.domain, one.name) for one in model.functions if any(node.op_type == PICKING for node in one.node)}
    picking |= {("", PICKING)}
    read = {name for node in model.graph.node if (node.domain, node.op_type) not in picking for name in node.input}
    stored = (tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8)
    return {tensor.name: tensor for tensor in stored if tensor.name in read}
