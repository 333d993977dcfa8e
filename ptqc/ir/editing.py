"""Small tools for changing an `onnx_ir` graph."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.ir.nodes import rank, static


def names_of(graph: ir.Graph) -> set[str]:
    """The names of all values of a graph and of its subgraphs."""
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    names.update(output.name for node in graph.all_nodes() for output in node.outputs)
    for inner in graph.subgraphs():
        names |= {value.name for value in inner.inputs} | set(inner.initializers)
    return {name for name in names if name}


def unique_name(graph: ir.Graph, hint: str, taken: set[str] | None = None) -> str:
    """A name that no value of the graph or of its subgraphs has.

    taken: `names_of` the graph, for who asks often, as it takes as long as the graph is large; the name is added to it.
    """
    taken = names_of(graph) if taken is None else taken
    name, number = hint, 1
    while name in taken:
        name, number = f"{hint}_{number}", number + 1
    taken.add(name)
    return name


def add_constant(model: ir.Model, array: np.ndarray, hint: str, taken: set[str] | None = None) -> ir.Value:
    """A new initializer of the main graph, which every subgraph may read, named after the hint.

    array: strings are given as objects, encoded. taken: see `unique_name`.
    """
    name = unique_name(model.graph, hint, taken)
    is_text = array.dtype == object
    tensor = ir.StringTensor(array, shape=ir.Shape(array.shape), name=name) if is_text else ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def fix_value(model: ir.Model, value: ir.Value, array: np.ndarray, taken: set[str] | None = None) -> bool:
    """Let a constant stand for an inner value; False, with nothing changed, for a graph output: it needs a node.

    taken: see `unique_name`.
    """
    if value.is_graph_output():
        return False
    value.replace_all_uses_with(add_constant(model, array, value.name or "constant", taken))
    return True


def insert_before(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, object] | None = None,
    *,
    name: str | None = None,
) -> ir.Value:
    """Put a new node in front of another one; returns its output, which takes the given name."""
    made = ir.node(op_type, inputs, attributes=attributes or {})  # type: ignore[arg-type]
    assert node.graph is not None
    node.graph.insert_before(node, made)
    if name is not None:
        made.outputs[0].name = name
    return made.outputs[0]


def replace_node(
    node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, object] | None = None
) -> ir.Node:
    """Put another node in the place of one with a single output; the output keeps its name, type and shape."""
    made = ir.node(op_type, inputs, attributes=attributes or {})  # type: ignore[arg-type]
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [made], node.outputs[:1], made.outputs)
    return made


def take_over(old: ir.Value, new: ir.Value) -> bool:
    """Let `new` stand for `old` everywhere, under the output's name if `old` is a graph output.

    False, with nothing changed, where that would change the interface: an input, a constant, a value of another
    graph or another output cannot become this output.
    """
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return True
    source, target = new.producer(), old.producer()
    if source is None or target is None or source.graph is not target.graph or new.is_graph_output():
        return False
    name, kind, shape = old.name, old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name, new.type, new.shape = name, kind, shape
    return True


def bypass(node: ir.Node, source: ir.Value) -> bool:
    """Remove a node whose first output equals `source`; False where `take_over` refuses."""
    if not take_over(node.outputs[0], source):
        return False
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def replace_constant(model: ir.Model, node: ir.Node, index: int, array: np.ndarray, hint: str) -> None:
    """Give the node a constant of its own as input `index`; the old one stays for whoever else reads it."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    node.replace_input_with(index, add_constant(model, array, hint))
    if old is not None and not old.uses() and old.is_initializer() and not old.is_graph_output() and old.graph:
        old.graph.initializers.pop(old.name or "")


def set_constant(model: ir.Model, name: str, array: np.ndarray) -> None:
    """Give an initializer other values, for all that read it."""
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(array, name=name)
    value.shape = ir.Shape(array.shape)


def remove_dead(model: ir.Model) -> bool:
    """Remove nodes and initializers that no output needs; True if there were any."""
    changed = bool(common.RemoveUnusedNodesPass()(model).modified)
    for graph in model.graph.subgraphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]
                changed = True
    return changed


# Data propagation follows each element of a vector: a value of 10^9 elements takes all memory there is.
MAX_VECTOR = 1 << 16


def _has_long_vector(model: ir.Model) -> bool:
    outputs = (output for node in model.graph.all_nodes() for output in node.outputs)
    return any(rank(output) == 1 and (static(output) or (0,))[0] > MAX_VECTOR for output in outputs)


def _has_sequences(model: ir.Model) -> bool:
    interface = (*model.graph.inputs, *model.graph.outputs)
    if any(isinstance(value.type, ir.SequenceType | ir.OptionalType) for value in interface):
        return True
    return any("Sequence" in node.op_type or "Optional" in node.op_type for node in model.graph.all_nodes())


def _infer_with_sequences(model: ir.Model) -> None:
    """As `infer_shapes`, by ONNX itself: the pass of onnx_ir takes sequences for tensors."""
    inner = [v for node in model.graph for v in node.outputs if not node.domain and not v.is_graph_output()]
    for value in inner:
        value.shape = None
    inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=False)
    found = {info.name: info.type for info in inferred.graph.value_info}
    for value in inner:
        if (kind := found.get(value.name)) is not None:
            value.type = ir.serde.deserialize_type_proto_for_type(kind)
            if kind.HasField("tensor_type"):
                value.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def infer_shapes(model: ir.Model) -> None:
    """Infer every inner shape and type anew; those of inputs and outputs stay as declared.

    What operators outside ONNX's own domain give keeps its shape, which nothing here could infer.
    """
    if _has_sequences(model):
        _infer_with_sequences(model)
        return
    interface = {value: (value.type, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output not in interface and not node.domain:
                output.shape = None
    common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    if not _has_long_vector(model):
        common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for value, (kind, shape) in interface.items():
        value.type, value.shape = kind, shape
