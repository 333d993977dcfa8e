"""Reading nodes: their inputs, constants and attributes."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir


def nodes_of(model: ir.Model, *op_types: str) -> Iterator[ir.Node]:
    """Nodes of ONNX's own operators of these types, subgraphs included; safe while the graph changes."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type in op_types and node.graph is not None:
            yield node


def output_name(node: ir.Node) -> str:
    """Of the first output that a node has: some operators may leave out any."""
    return next((value.name for value in node.outputs if value.name), "")


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant value (initializer or Constant node), None for any other."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The number that a constant of one element holds, whatever its rank; None for any other value.

    Exporters write bounds, fill values and axes with shape [] or [1], and ONNX Runtime takes both.
    """
    array = constant(value)
    return None if array is None or array.size != 1 else array.item()


def initial(model: ir.Model, name: str) -> np.ndarray:
    """The array of an initializer that is there."""
    array = constant(model.graph.initializers[name])
    assert array is not None
    return array


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """The node's input, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def required(value: ir.Value | None) -> ir.Value:
    """The value of an input that the operator cannot be without."""
    if value is None:
        raise ValueError("an input that the operator requires is absent")
    return value


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes the value if it is of one of these types."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The node that alone reads the value; None for none, several, or a graph output."""
    if value.is_graph_output() or len(value.uses()) != 1:
        return None
    return value.consumers()[0]


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def integers(node: ir.Node, name: str, default: Sequence[int]) -> list[int]:
    """An attribute that lists integers."""
    attribute = node.attributes.get(name)
    return list(default) if attribute is None else list(attribute.as_ints())


def number(node: ir.Node, name: str, default: float) -> float:
    """A float attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_float()


def text(node: ir.Node, name: str, default: str) -> str:
    """A string attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


def static(value: ir.Value | None, axes: slice = slice(None)) -> tuple[int, ...] | None:
    """The sizes of the value's axes (default: all), None if any of them is not known."""
    if value is None or value.shape is None:
        return None
    sizes = tuple(value.shape)[axes]
    return tuple(size for size in sizes if isinstance(size, int)) if all(isinstance(s, int) for s in sizes) else None


def rank(value: ir.Value | None) -> int | None:
    """The number of the value's axes, None if it is not known."""
    return None if value is None or value.shape is None else value.shape.rank()


def same_size(first: int | ir.SymbolicDim, second: int | ir.SymbolicDim) -> bool:
    """Whether two sizes are known to be the same: equal numbers, or one symbol. Of open ones nothing is known."""
    is_open = isinstance(first, ir.SymbolicDim) and first.value is None
    return not is_open and first == second


def is_batchable(model: ir.Model) -> bool:
    """Whether all inputs and outputs are declared with an open first axis, that of the inputs the same."""
    return has_open_batch(model.graph.inputs) and all(map(has_open_first_axis, model.graph.outputs))


def has_open_batch(inputs: Sequence[ir.Value]) -> bool:
    """Whether all of these values have one symbolic first dimension."""
    firsts = {str(v.shape[0]) if v.shape is not None and len(v.shape) else "" for v in inputs}
    return len(firsts) == 1 and "None" not in firsts and all(map(has_open_first_axis, inputs))


def has_open_first_axis(value: ir.Value) -> bool:
    """Whether the value is declared with a first axis of any size."""
    return value.shape is not None and len(value.shape) > 0 and not isinstance(value.shape[0], int)
