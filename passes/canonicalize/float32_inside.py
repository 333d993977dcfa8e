"""Models in half (or double) precision compute in float32 inside; inputs and outputs keep their types.

What packs caches rounds on purpose, and stays as it is.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import unique_name
from ptqc.ir.sites import IN_FLOAT
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

Types = tuple[ir.DataType, ...]

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Float32Inside:
    """Float16 and bfloat16 become float32 everywhere but in the interface, where Casts stand.

    double: float64, too.
    """

    double: bool = False
    name: ClassVar[str] = "float32-inside"
    effect: ClassVar[Effect] = Effect.REWRITE

    @property
    def types(self) -> Types:
        """What becomes float32."""
        return (*HALF, ir.DataType.DOUBLE) if self.double else HALF

    def apply(self, probed: Probed) -> Result[Probed]:
        """Cast constants, attributes and value types, then put Casts at the inputs and outputs."""
        model = probed.model
        result = _present(model, self.types)
        if not result:
            return probed.rewritten([])
        for graph in model.graphs():
            _cast_constants(graph, result)
            if graph is not model.graph:
                _retype([*graph.inputs, *graph.outputs], result)
        outputs = [value for value in model.graph.outputs if value.dtype in result and not _is_packed(value)]
        for node in computing(model):
            _cast_attributes(node, result)
            _retype([value for value in node.outputs if value not in outputs], result)
        for value in model.graph.inputs:
            if value.dtype in result and value.uses() and not _is_packed(value):
                _cast_input(model.graph, value)
        for value in outputs:
            _cast_output(model.graph, value)
        names = " and ".join(sorted(dtype.name for dtype in result))
        message = f"the {names} model computes in float32 inside; inputs and outputs keep their type"
        return probed.rewritten([Note(self.name, "", message)])


def _present(model: ir.Model, types: Types) -> Types:
    """Which of the types the model has."""
    values = [value for value in (*model.graph.inputs, *model.graph.outputs) if not _is_packed(value)]
    for graph in model.graphs():
        values += graph.initializers.values()
    for node in computing(model):
        values += node.outputs
    result = {value.dtype for value in values}
    attributes = [attribute for node in computing(model) for attribute in node.attributes.values()]
    result |= {one.as_tensor().dtype for one in attributes if one.type == ir.AttributeType.TENSOR}
    named = {one.as_int() for one in attributes if names_type(one)}  # values behind a Cast often have no stated type
    return tuple(dtype for dtype in types if dtype in result or dtype in named)


def names_type(attribute: ir.Attr) -> bool:
    """Whether an attribute names a type: Cast's `to`, `dtype` of the generators."""
    return attribute.name in ("to", "dtype") and attribute.type == ir.AttributeType.INT


def computing(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of a model but for those that pack and unpack caches, subgraphs included."""
    return (node for node in model.graph.all_nodes() if IN_FLOAT not in node.metadata_props)


def _is_packed(value: ir.Value) -> bool:
    """Whether an input or output of the model belongs to a packed cache."""
    nodes = [value.producer(), *value.consumers()]
    return any(node is not None and IN_FLOAT in node.metadata_props for node in nodes)


def _cast(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor in float32, made where it is looked at if the tensor is in a file."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.LazyTensor(partial(_in_float32, tensor), ir.DataType.FLOAT, tensor.shape, name=tensor.name)
    return _in_float32(tensor)


def _in_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Finite numbers stay finite, as the lowest of all often stands for minus infinity."""
    array = tensor.numpy()
    if tensor.dtype == ir.DataType.DOUBLE:
        array = np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array)
    return ir.tensor(array.astype(np.float32), name=tensor.name)


def _cast_constants(graph: ir.Graph, types: Types) -> None:
    for value in graph.initializers.values():
        if value.dtype in types and value.const_value is not None:
            value.const_value = _cast(value.const_value)
            _set_float(value)


def _retype(values: list[ir.Value], types: Types) -> None:
    for value in values:
        if value.dtype in types:
            _set_float(value)


def _set_float(value: ir.Value) -> None:
    """Make its elements float32. A clone of the model shares the type itself, which must stay as it is."""
    value.type = copy.deepcopy(value.type)
    value.dtype = ir.DataType.FLOAT


def _cast_attributes(node: ir.Node, types: Types) -> None:
    """Tensors in attributes, and attributes that name a type."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in types:
            node.attributes[name] = ir.AttrTensor(name, _cast(attribute.as_tensor()))
        elif names_type(attribute) and attribute.as_int() in types:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    cast = ir.node("Cast", [], attributes={"to": ir.DataType.FLOAT.value})
    inner = cast.outputs[0]
    inner.name, inner.shape, inner.dtype = unique_name(graph, f"{value.name}_float32"), value.shape, ir.DataType.FLOAT
    value.replace_all_uses_with(inner, replace_graph_outputs=False)
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
    cast = ir.node("Cast", [], attributes={"to": (value.dtype or ir.DataType.FLOAT).value})
    result = cast.outputs[0]
    result.name, result.shape, result.type = value.name, value.shape, value.type
    graph.outputs[graph.outputs.index(value)] = result
    value.name, value.type = unique_name(graph, f"{value.name}_float32"), ir.TensorType(ir.DataType.FLOAT)
    cast.resize_inputs(1)
    cast.replace_input_with(0, value)
    graph.append(cast)
