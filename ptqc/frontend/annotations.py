"""What exporters write beside the network: stack traces and names of modules, in metadata and doc strings."""

from collections.abc import Iterable, Iterator

import onnx

from ptqc.ir.proto_walk import every_graph, every_node

Annotated = onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto


def drop_annotations(model: onnx.ModelProto) -> int:
    """Clear metadata and doc strings of everything inside the model; the bytes that they took.

    What describes the model to its users stays: its own `metadata_props`, and the doc strings of the model, of its
    graph, and of its inputs and outputs.
    """
    before: int = model.ByteSize()
    for message in (model.graph, *model.graph.input, *model.graph.output):
        message.ClearField("metadata_props")
    for message in _annotated(model):
        message.ClearField("metadata_props")
        message.ClearField("doc_string")
    for node in every_node(model):
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
    after: int = model.ByteSize()
    return before - after


def _annotated(model: onnx.ModelProto) -> Iterator[Annotated]:
    yield from model.functions
    yield from every_node(model)
    for number, graph in enumerate(every_graph(model)):
        yield from graph.initializer
        yield from graph.value_info
        if number:  # the first one is the model's own
            yield from (graph, *graph.input, *graph.output)
    for function in model.functions:
        yield from function.value_info
    yield from _attribute_tensors(every_node(model))


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
