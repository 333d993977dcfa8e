"""Walking over the parts of a protobuf model."""

from collections.abc import Iterable, Iterator

import onnx

from ptqc.ir.protos import subgraphs


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


def label(node: onnx.NodeProto) -> str:
    """How messages name a node: by its first output, since names of nodes need not be unique."""
    return f"{node.op_type} node that gives {node.output[0] if node.output else ''!r}"
