"""Tensors whose data lie in files beside the model, held by the model itself: then no folder matters any more."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir


def hold_external(model: ir.Model, folder: Path, *, mapped: bool) -> None:
    """Let every tensor with external data hold them, functions and subgraphs included.

    folder: what their locations are relative to. mapped: map the files into memory instead of copying them, for models
    that should not be in memory as a whole; the files must then stay as they are.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _held(value.const_value, folder, mapped)
    for node, attribute in _tensor_attributes(model):
        if isinstance(attribute.value, ir.ExternalTensor):
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _held(attribute.value, folder, mapped))


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    bodies: Iterable[ir.Graph | ir.Function] = (model.graph, *model.functions.values())
    for node in (node for body in bodies for node in body.all_nodes()):
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.TENSOR:
                yield node, attribute


def _held(tensor: ir.ExternalTensor, folder: Path, mapped: bool) -> ir.TensorProtocol:
    tensor.base_dir = folder
    array = tensor.numpy()
    return ir.Tensor(array if mapped else array.copy(), dtype=tensor.dtype, name=tensor.name)
