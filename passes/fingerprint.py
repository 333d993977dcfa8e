"""What of a model a pass can change, to tell whether it did."""

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, eq=False)
class _Same:
    """Wraps an object to compare by identity, and keeps it alive so that its identity stays its own."""

    held: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held


def fingerprint(model: ir.Model) -> list[object]:
    """What a pass can change, with tensors and attributes (never changed in place) by identity."""
    marks: list[object] = [dict(model.opset_imports), model.ir_version, list(model.functions)]
    for graph in model.graphs():
        marks.append([(name, _Same(value.const_value)) for name, value in graph.initializers.items()])
        marks.append([(value.name, value.dtype, str(value.shape)) for value in (*graph.inputs, *graph.outputs)])
    for node in model.graph.all_nodes():
        inputs = [value.name if value is not None else None for value in node.inputs]
        attributes = [(name, _Same(attribute)) for name, attribute in node.attributes.items()]
        marks.append((node.domain, node.op_type, inputs, [value.name for value in node.outputs], attributes))
    return marks
