"""The lowered graph back from a packed file: what a machine that did not compile it can be held to.

Functions are inlined, and what stands between constants and DequantizeLinear is computed by ONNX Runtime once, without
optimizations; values keep the names that they have in the file.
"""

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.ir.lowered import Lowered


def unpack(proto: onnx.ModelProto) -> Lowered:
    """A delivered file as a lowered graph; storage formats and names of the original are not in it."""
    model = ir.from_proto(proto)
    common.InlinePass()(model)
    model.functions.clear()
    common.RemoveUnusedOpsetsPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    fixed = _fixed_nodes(model)
    dequantizers = [node for node in fixed if node.op_type == "DequantizeLinear"]
    _compute(model, fixed, {value for node in dequantizers for value in node.inputs if value is not None})
    common.RemoveUnusedNodesPass()(model)
    common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    return Lowered(model, {}, {}, {}, {str(node.outputs[0].name): None for node in dequantizers})


def _fixed_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes that depend on constants alone: weights and biases on their way to a layer."""
    varying, fixed = set(model.graph.inputs), []
    for node in model.graph:
        if varying.isdisjoint(value for value in node.inputs if value is not None):
            fixed.append(node)
        else:
            varying.update(node.outputs)
    return fixed


def _compute(model: ir.Model, fixed: list[ir.Node], wanted: set[ir.Value]) -> None:
    """Put constants in the place of the wanted values."""
    computed = {str(value.name): value for value in wanted if value.producer() is not None}
    if not computed:
        return
    names = sorted(computed)
    found = Runner(_part(model, fixed, names), options=session_options(optimize=False)).run({}, names)
    for name in names:
        tensor = ir.tensor(found[name], name=f"{name}/constant")
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(found[name].shape)
        constant = ir.Value(name=tensor.name, shape=shape, type=kind, const_value=tensor)
        model.graph.register_initializer(constant)
        computed[name].replace_all_uses_with(constant)


def _part(model: ir.Model, nodes: list[ir.Node], outputs: list[str]) -> onnx.ModelProto:
    """A model of these nodes, which need no input."""
    proto = ir.to_proto(model)
    kept = [ir.serde.serialize_node(node) for node in nodes]
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = onnx.helper.make_graph(kept, "constants", [], values, proto.graph.initializer)
    return onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
