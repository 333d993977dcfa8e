"""Edits of QDQ models that several forms share."""

from collections.abc import Iterable

import onnx
from onnx import helper

#: The first operator set whose conversions know codes of 4 and of 16 bits.
NEW_CODES = 21


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def set_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Put nodes in the place of those of the main graph; they may be among them."""
    copies = onnx.GraphProto(node=nodes)
    del model.graph.node[:]
    model.graph.node.extend(copies.node)


def drop_unread(model: onnx.ModelProto) -> None:
    """Leave out nodes and constants that nothing reads."""
    read = {value.name for value in model.graph.output}
    remaining = []
    for node in reversed(model.graph.node):
        if not read.isdisjoint(node.output):
            remaining.append(node)
            read.update(node.input)
    set_nodes(model, remaining[::-1])
    constants = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)


def raise_opset(model: onnx.ModelProto) -> None:
    """Let conversions have codes of 4 and of 16 bits."""
    standard = next(each for each in model.opset_import if not each.domain)
    standard.version = max(standard.version, NEW_CODES)
    model.ir_version = max(model.ir_version, helper.find_min_ir_version_for([standard]))
