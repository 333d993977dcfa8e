"""A node of a protobuf model and the graphs inside it, and a model's interface as protobuf."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from ptqc.errors import ModelError


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in a node's attributes (the branches of an If, the body of a Loop)."""
    graphs = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs.extend(attribute.graphs)
    return graphs


def value_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every value name, of subgraphs too: what is inside them may not be called as what is outside."""
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in subgraphs(node):
            yield from value_names(inner)


def reads(node: onnx.NodeProto) -> set[str]:
    """Names that the node reads, those that its subgraphs take from outside included."""
    names = {name for name in node.input if name}
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        inside = {name for inner in graph.node for name in reads(inner)} | {value.name for value in graph.output}
        names |= inside - own
    return names


def interface(model: ir.Model) -> onnx.GraphProto:
    """A graph with the inputs and outputs of a model and nothing else."""
    serialize = ir.serde.serialize_value
    return onnx.GraphProto(input=map(serialize, model.graph.inputs), output=map(serialize, model.graph.outputs))


# Walking over the parts of a protobuf model.


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of every graph inside them."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def bodies(model: onnx.ModelProto) -> Iterator[Iterable[onnx.NodeProto]]:
    """The nodes of the main graph, then those of each model-local function."""
    yield model.graph.node
    for function in model.functions:
        yield function.node


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the model, functions and subgraphs included."""
    for body in bodies(model):
        yield from all_nodes(body)


def every_graph(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every subgraph, those inside functions included."""
    yield model.graph
    for node in every_node(model):
        yield from subgraphs(node)


@contextmanager
def inferring() -> Iterator[None]:
    """Within it, whatever shape inference raises is a ModelError."""
    try:
        yield
    except Exception as error:  # the library's own error types
        raise ModelError(f"shapes do not fit together: {error}; export the model again") from error


def label(node: onnx.NodeProto) -> str:
    """How messages name a node: by its first output, since names of nodes need not be unique."""
    return f"{node.op_type} node that gives {node.output[0] if node.output else ''!r}"
