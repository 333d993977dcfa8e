"""A node of a protobuf model and the graphs inside it, and a model's interface as protobuf."""

import onnx
import onnx_ir as ir


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in a node's attributes (the branches of an If, the body of a Loop)."""
    graphs = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs.extend(attribute.graphs)
    return graphs


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
    given, made = ([ir.to_proto(value) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return onnx.GraphProto(input=given, output=made)
