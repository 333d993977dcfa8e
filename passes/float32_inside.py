"""Models in half precision compute in float32 inside; inputs and outputs keep their types."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.notes import Note
from ptqc.passes.base import Effect, RewriteContext
from ptqc.passes.graph_tools import unique_name

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Float32Inside:
    """Widen float16 and bfloat16 to float32 everywhere but in the interface, where Casts stand."""

    name: ClassVar[str] = "float32-inside"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """Widen constants, attributes and value types, then cast at the inputs and outputs."""
        found = _half_types(model)
        if not found:
            return []
        for graph in model.graphs():
            _widen_constants(graph)
            if graph is not model.graph:
                _widen_types([*graph.inputs, *graph.outputs])
        outputs = [value for value in model.graph.outputs if value.dtype in HALF]
        for node in model.graph.all_nodes():
            _widen_attributes(node)
            _widen_types([value for value in node.outputs if value not in outputs])
        for value in model.graph.inputs:
            _cast_input(model.graph, value)
        for value in outputs:
            _cast_output(model.graph, value)
        names = " and ".join(sorted(dtype.name for dtype in found))
        return [
            Note(self.name, "", f"the {names} model computes in float32 inside; inputs and outputs keep their type")
        ]


def _half_types(model: ir.Model) -> set[ir.DataType]:
    values = [*model.graph.inputs, *model.graph.outputs]
    for graph in model.graphs():
        values += graph.initializers.values()
    for node in model.graph.all_nodes():
        values += node.outputs
    found = {value.dtype for value in values if value.dtype in HALF}
    tensors = [attribute.value for node in model.graph.all_nodes() for attribute in node.attributes.values()]
    found |= {value.dtype for value in tensors if isinstance(value, ir.TensorProtocol) and value.dtype in HALF}
    return {dtype for dtype in found if dtype is not None}


def _widen(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _widen_constants(graph: ir.Graph) -> None:
    for value in graph.initializers.values():
        if value.dtype in HALF and value.const_value is not None:
            value.const_value = _widen(value.const_value)
            value.dtype = ir.DataType.FLOAT


def _widen_types(values: list[ir.Value]) -> None:
    for value in values:
        if value.dtype in HALF:
            value.dtype = ir.DataType.FLOAT


def _widen_attributes(node: ir.Node) -> None:
    """Tensors in attributes, and attributes that name a type (Cast's `to`, `dtype` of the generators)."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALF:
            node.attributes[name] = ir.AttrTensor(name, _widen(attribute.as_tensor()))
        elif name in ("to", "dtype") and attribute.type == ir.AttributeType.INT and attribute.as_int() in HALF:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    if value.dtype not in HALF or not value.uses():
        return
    cast = ir.node("Cast", [], attributes={"to": ir.DataType.FLOAT.value})
    wide = cast.outputs[0]
    wide.name, wide.shape, wide.dtype = unique_name(graph, f"{value.name}_float32"), value.shape, ir.DataType.FLOAT
    value.replace_all_uses_with(wide, replace_graph_outputs=False)
    cast.resize_inputs(1)
    cast.replace_input_with(0, value)
    _insert_first(graph, cast)


def _insert_first(graph: ir.Graph, node: ir.Node) -> None:
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _cast_output(graph: ir.Graph, value: ir.Value) -> None:
    """Let a Cast give the output; the value that gave it takes another name and computes in float32."""
    node = value.producer()
    if node is None:  # an input or a constant that is an output as it is
        return
    cast = ir.node("Cast", [], attributes={"to": (value.dtype or ir.DataType.FLOAT16).value})
    given = cast.outputs[0]
    given.name, given.shape, given.type = value.name, value.shape, value.type
    graph.outputs[graph.outputs.index(value)] = given
    value.name, value.type = unique_name(graph, f"{value.name}_float32"), ir.TensorType(ir.DataType.FLOAT)
    cast.resize_inputs(1)
    cast.replace_input_with(0, value)
    graph.append(cast)
