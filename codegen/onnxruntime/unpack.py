"""The lowered graph back from a packed file: what a machine that did not compile it can be held to.

Functions are inlined, and what stands between constants and DequantizeLinear is computed by ONNX Runtime once, without
optimizations; values keep the names that they have in the file.
"""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common
from onnx import helper, numpy_helper

from ptqc.codegen.onnxruntime.constants import Share
from ptqc.codegen.onnxruntime.names import short_names
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.ir.external import tensor
from ptqc.ir.lowered import Lowered
from ptqc.ir.protos import value_names


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
    result = Runner(_part(model, fixed, names), options=session_options(optimize=False)).run({}, names)
    for name in names:
        tensor = ir.tensor(result[name], name=f"{name}/constant")
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(result[name].shape)
        constant = ir.Value(name=tensor.name, shape=shape, type=kind, const_value=tensor)
        model.graph.register_initializer(constant)
        computed[name].replace_all_uses_with(constant)


def _part(model: ir.Model, nodes: list[ir.Node], outputs: list[str]) -> onnx.ModelProto:
    """A model of these nodes, which need no input."""
    proto = ir.to_proto(model)
    remaining = [ir.serde.serialize_node(node) for node in nodes]
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = onnx.helper.make_graph(remaining, "constants", [], values, proto.graph.initializer)
    return onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)


# The packed file without model-local functions, for runtimes that do not inline them: each call becomes its nodes.
#
# Constants of the functions become initializers, equal ones once. What is computed is the same, and ONNX Runtime
# folds it the same when it loads the file; the file is larger by the nodes, some 20 for each weight.


def inlined(model: onnx.ModelProto, chosen: Callable[[onnx.NodeProto], bool] = lambda _: True) -> onnx.ModelProto:
    """A copy with every call expanded, or every chosen one; values that were there keep their names."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph, bodies = result.graph, {function.name: function for function in model.functions}
    names = short_names(1, frozenset(value_names(graph)))
    shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def share(array: np.ndarray) -> str:
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in shared:
            shared[key] = next(names)
            graph.initializer.append(tensor(shared[key], array))
        return shared[key]

    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        is_expanded = node.domain == DOMAIN and chosen(node)
        nodes += expanded(node, bodies[node.op_type], names.__next__, share) if is_expanded else [node]
    del graph.node[:], result.functions[:], result.opset_import[:]
    graph.node.extend(nodes)
    called = {node.op_type for node in nodes if node.domain == DOMAIN}
    result.functions.extend(bodies[name] for name in bodies if name in called)
    result.opset_import.extend(entry for entry in model.opset_import if called or entry.domain != DOMAIN)
    return result


def expanded(
    call: onnx.NodeProto, body: onnx.FunctionProto, fresh: Callable[[], str], share: Share
) -> list[onnx.NodeProto]:
    """The nodes that a call stands for. fresh: names for the values inside; share: the name of a constant."""
    names = dict(zip((*body.input, *body.output), (*call.input, *call.output), strict=True))
    nodes = []
    for inner in body.node:
        if inner.op_type == "Constant":
            names[inner.output[0]] = share(_constant(inner.attribute[0], call))
            continue
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                attribute.CopyFrom(_stated(attribute, call))
        node.input[:] = [names[name] for name in inner.input]
        for name in inner.output:
            if name not in names:
                names[name] = fresh()
        node.output[:] = [names[name] for name in inner.output]
        nodes.append(node)
    return nodes


def _constant(attribute: onnx.AttributeProto, call: onnx.NodeProto) -> np.ndarray:
    """A constant of the body, or an attribute of the call."""
    if not attribute.ref_attr_name:
        return np.asarray(numpy_helper.to_array(attribute.t))
    return np.array(helper.get_attribute_value(_stated(attribute, call)), np.int64)


def _stated(attribute: onnx.AttributeProto, call: onnx.NodeProto) -> onnx.AttributeProto:
    """What a call states for an attribute of the body."""
    operand = next(result for result in call.attribute if result.name == attribute.ref_attr_name)
    return helper.make_attribute(attribute.name, helper.get_attribute_value(operand))
