"""Precision: an interface of NumPy's own types, no float64 unless that is meant, and weights that are finite."""

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.ir.operators import Trait, named
from ptqc.ir.proto_walk import every_graph, every_node

# Infinities in other places (an attention mask) are meant.
COMPUTE = named(Trait.WEIGHTED)
CAST = "export it in float32, or give --cast-double (cast_double=True), which computes in float32 inside"


def check_interface(model: onnx.ModelProto) -> None:
    """Refuse models that take or give what NumPy has no type for."""
    for value in (*model.graph.input, *model.graph.output):
        _check_type(value)


def check_no_double(model: onnx.ModelProto) -> None:
    """Refuse float64 inputs and weights. float64 constants elsewhere (exporters write them) are fine."""
    double = onnx.TensorProto.DOUBLE
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == double:
            raise ModelError(f"{value.name!r} is float64; float32 is expected: {CAST}")
    weights = {name for node in every_node(model) if node.op_type in COMPUTE for name in node.input}
    for graph in every_graph(model):
        for tensor in graph.initializer:
            if tensor.data_type == double and tensor.name in weights:
                raise ModelError(f"weight {tensor.name!r} is float64; float32 is expected: {CAST}")


def check_no_double_layers(model: ir.Model) -> None:
    """Refuse float64 outputs of layers that compute in float64. Where it begins behind them it stays: it costs nothing.

    Values without a type count as float64 where something that the node reads is.
    """
    if all(value.dtype != ir.DataType.DOUBLE for value in model.graph.outputs):
        return
    doubles = {value for value in model.graph.initializers.values() if value.dtype == ir.DataType.DOUBLE}
    for node in model.graph.all_nodes():
        reads_double = not doubles.isdisjoint(node.inputs)
        if reads_double and node.op_type in COMPUTE:
            name = node.outputs[0].name
            raise ModelError(f"the {node.op_type} that gives {name!r} computes in float64; float32 is expected: {CAST}")
        makes_double = _makes_double(node, reads_double)
        doubles |= {v for v in node.outputs if v.dtype == ir.DataType.DOUBLE or (v.dtype is None and makes_double)}


def _makes_double(node: ir.Node, reads_double: bool) -> bool:
    """Whether a node gives float64: as a Cast or a Constant says, any other where it reads some."""
    if node.op_type == "Cast":
        return node.attributes["to"].as_int() == ir.DataType.DOUBLE.value
    if node.op_type == "Constant":
        value = node.attributes.get("value")
        return value is not None and value.as_tensor().dtype == ir.DataType.DOUBLE
    return reads_double


def _check_type(value: onnx.ValueInfoProto) -> None:
    number = value.type.tensor_type.elem_type
    if number not in (entry.value for entry in ir.DataType):
        raise ModelError(f"{value.name!r} has the unknown type {number}: export the model again")
    dtype = ir.DataType(number)
    if dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return
    if dtype.numpy().isbuiltin != 1:
        raise ModelError(
            f"{value.name!r} is {dtype.name.lower()}, which NumPy has no type for; export the model with float32 or "
            "float16 inputs and outputs (in PyTorch, .float() of what it gives). Weights may stay as they are"
        )


def check_weights_finite(model: ir.Model) -> None:
    """Refuse NaN and infinities in the constants that the compute operators read."""
    seen: set[ir.Value] = set()
    bodies: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in ir.traversal.RecursiveGraphIterator(body)):
        if node.op_type not in COMPUTE or node.domain != "":
            continue
        for value in node.inputs:
            if value is not None and value not in seen:
                seen.add(value)
                _check_finite(value)


def _check_finite(value: ir.Value) -> None:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return
    array = tensor.numpy()
    if not array.size:
        raise ModelError(f"weight {value.name!r} has no elements (shape {list(array.shape)}): export the model again")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise ModelError(
            f"weight {value.name!r} holds {bad} of {array.size} values that are NaN or infinite; "
            "expected finite ones: train or export the model again"
        )
