"""What the layers in branches of If and bodies of Loop and Scan read, as values of the main graph.

The nodes hand it on as further outputs: an If what the branch taken reads, and empty tensors for the other; Loop and
Scan what is read in every iteration, stacked.
"""

from collections.abc import Iterator, Mapping
from itertools import count

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import find_inner_layers
from ptqc.ir.nodes import integers
from ptqc.ir.operators import Trait, named

BODIES = named(Trait.BODIES)


def with_inner_inputs(model: ir.Model) -> tuple[ir.Model, Mapping[str, str]]:
    """A copy of a model that hands on what layers in subgraphs read; by the name of a layer's input its value."""
    copy = model.clone()
    wanted = {node: layer.input for node, layer in find_inner_layers(copy).items()}
    found = _handed_on(copy.graph, wanted, count())
    return copy, {name: str(value.name) for name, value in found.items()}


def _handed_on(graph: ir.Graph, wanted: Mapping[ir.Node, str], numbers: Iterator[int]) -> dict[str, ir.Value]:
    """Values of a graph that layers in it and in its subgraphs read."""
    found = {wanted[node]: value for node in graph if node in wanted and (value := node.inputs[0]) is not None}
    for node in list(graph):
        if node.op_type in BODIES and not node.domain:
            found |= _from_inside(node, wanted, numbers)
    return found


def _from_inside(node: ir.Node, wanted: Mapping[ir.Node, str], numbers: Iterator[int]) -> dict[str, ir.Value]:
    """New outputs of a node for what is read in its graphs."""
    graphs = [each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH]
    inside = [_handed_on(graph, wanted, numbers) for graph in graphs]
    names = [name for found in inside for name in found]
    for graph, found in zip(graphs, inside, strict=True):
        for name in names:
            maker = _maker(found.get(name))
            _name(maker.outputs[0], f"{name} {next(numbers)}")
            graph.append(maker)
            graph.outputs.append(maker.outputs[0])
    old = len(node.outputs)
    node.resize_outputs(old + len(names))
    for name, output in zip(names, node.outputs[old:], strict=True):
        _name(output, f"{name} {next(numbers)}")
    for attribute in ("scan_output_axes", "scan_output_directions"):
        if attribute in node.attributes:
            node.attributes[attribute] = ir.AttrInt64s(attribute, [*integers(node, attribute, []), *(0 for _ in names)])
    return dict(zip(names, node.outputs[old:], strict=True))


def _maker(value: ir.Value | None) -> ir.Node:
    """A node that gives a value, or an empty tensor in its stead."""
    if value is not None:
        return ir.node("Identity", [value])
    return ir.node("Constant", [], attributes={"value": ir.tensor(np.empty(0, np.float32))})


def _name(value: ir.Value, name: str) -> None:
    value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
