"""Models whose large tensors lie in files, as ONNX Runtime opens them: the graph is a message, tensors have paths."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from ptqc.ir import protos
from ptqc.ir.references import ROOT, refers
from ptqc.ir.spilled import SpilledTensors

PLACE: Mapping[str, str] = {"session.model_external_initializers_file_folder_path": ROOT}
# It would rearrange weights for its products, which is a copy of each of them.
PREPACKING = "session.disable_prepacking"
SETTINGS: Mapping[str, str] = {**PLACE, PREPACKING: "1"}
# What it would compute of weights when it loads a model, such as casts to float32, would be copies, too.
WITHOUT = ("ConstantFolding",)
# But integer kernels are found only where weights are unpacked when a file is loaded, and the scales of products in
# blocks must be there by then: the kernel takes others for none.
LOADED_WHOLE = frozenset({"QuantizeLinear", "MatMulNBits", "GatherBlockQuantized"})


def message(model: ir.Model) -> onnx.ModelProto:
    """The model as a message, in which tensors that are in files are references, relative to ROOT."""
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        _root(tensor)
    return proto


def spilled_message(model: ir.Model, spilled: SpilledTensors) -> onnx.ModelProto:
    """The model as a message without large tensors: those that it holds go to a file, one after the other."""
    graph = protos.interface(model)
    graph.name = model.graph.name or "graph"
    graph.node.extend(map(ir.to_proto, model.graph))
    values = (value for node in model.graph for value in node.outputs)
    graph.value_info.extend(ir.to_proto(v) for v in values if v.name and v.type is not None and not v.is_graph_output())
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or not _has_plain_bytes(tensor):
            graph.initializer.extend([] if tensor is None else [tensor_message(tensor, name)])
        else:
            graph.initializer.append(spilled.make(name, tensor.numpy()))
    imports = [onnx.helper.make_opsetid(*item) for item in model.opset_imports.items()]
    functions = map(ir.to_proto, model.functions.values())
    return onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports, functions=functions)


def _has_plain_bytes(tensor: ir.TensorProtocol) -> bool:
    """Whether each number takes whole bytes."""
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8


def tensor_message(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """A tensor as a message of this name; a reference where it is in a file."""
    proto = ir.serde.serialize_tensor(tensor)
    proto.name = name
    _root(proto)
    return proto


def _root(tensor: onnx.TensorProto) -> None:
    for entry in tensor.external_data if refers(tensor) else ():
        if entry.key == "location":
            entry.value = Path(entry.value).relative_to(ROOT).as_posix()


def is_loaded_whole(proto: onnx.ModelProto) -> bool:
    """Whether a file computes as it should only if constants are computed when it is loaded."""
    return any(node.op_type in LOADED_WHOLE for node in proto.graph.node)


def without_tensors(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a skeleton for libraries that read every tensor of a model: inputs stand for the references."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(tensor for tensor in proto.graph.initializer if not refers(tensor))
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if refers(tensor) and tensor.name not in known:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return bare
