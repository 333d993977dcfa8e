"""Reading nodes: their inputs, constants and attributes."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common


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


# Small tools for changing an `onnx_ir` graph.


def names_of(graph: ir.Graph) -> set[str]:
    """The names of all values of a graph and of its subgraphs."""
    return set(_defined(graph))


def _defined(graph: ir.Graph) -> Iterator[str]:
    """Those names, each as often as there is a value of it."""
    for each in (graph, *graph.subgraphs()):
        yield from (value.name for value in each.inputs if value.name)
        yield from filter(None, each.initializers)
    yield from (output.name for node in graph.all_nodes() for output in node.outputs if output.name)


def unique_name(graph: ir.Graph, hint: str, taken: set[str] | None = None) -> str:
    """A name that no value of the graph or of its subgraphs has.

    taken: `names_of` the graph, for who asks often, as it takes as long as the graph is large; the name is added to it.
    """
    taken = names_of(graph) if taken is None else taken
    name = _free(hint, taken)
    taken.add(name)
    return name


def _free(hint: str, taken: Container[str]) -> str:
    name, number = hint, 1
    while name in taken:
        name, number = f"{hint}_{number}", number + 1
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
    result = ir.node(op_type, inputs, attributes=attributes or {})  # type: ignore[arg-type]
    assert node.graph is not None
    node.graph.insert_before(node, result)
    if name is not None:
        result.outputs[0].name = name
    return result.outputs[0]


def replace_node(
    node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, object] | None = None
) -> ir.Node:
    """Put another node in the place of one with a single output; the output keeps its name, type and shape."""
    result = ir.node(op_type, inputs, attributes=attributes or {})  # type: ignore[arg-type]
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [result], node.outputs[:1], result.outputs)
    return result


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


def has_long_vector(model: ir.Model) -> bool:
    """Whether data propagation would follow a vector of more than MAX_VECTOR elements."""
    lengths: dict[ir.Value, int] = {}
    for node in model.graph.all_nodes():
        parts = [lengths.get(value, 0) or _length(value) for value in node.inputs if value is not None]
        most = sum(parts) if node.op_type == "Concat" else max(parts, default=0)
        for output in (output for output in node.outputs if rank(output) == 1):
            sizes = static(output)
            lengths[output] = most if sizes is None else sizes[0]  # it goes on to vectors of unknown length
            if lengths[output] > MAX_VECTOR:
                return True
    return False


def _length(value: ir.Value) -> int:
    """Of a constant vector, which is no longer than its file."""
    return min((static(value) or (0,))[0], MAX_VECTOR) if rank(value) == 1 and value.is_initializer() else 0


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
    result = {info.name: info.type for info in inferred.graph.value_info}
    for value in inner:
        if (kind := result.get(value.name)) is not None:
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
    if not has_long_vector(model):
        common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for value, (kind, shape) in interface.items():
        value.type, value.shape = kind, shape


# Branches of If and bodies of Loop and Scan: their constants, and the branch that a constant condition takes.

Known = Callable[[ir.Value | None], np.ndarray | None]


def inline_known_branches(model: ir.Model, known: Known = constant) -> bool:
    """Move the nodes of the branch taken in front of each If of known condition, and remove the If; True if any was.

    known: gives the condition, or None.
    """
    has_changed = False
    for node in nodes_of(model, "If"):
        condition = known(node.inputs[0])
        if condition is None:
            continue
        has_changed = True
        branch = node.attributes.pop("then_branch" if condition.any() else "else_branch").as_graph()
        results = list(branch.outputs)
        branch.outputs.clear()
        names = Counter([*_defined(model.graph), *_defined(branch)])  # the If may be in a branch that is gone
        for value in list(branch.initializers.values()):
            _move_constant(model, branch, value, names)
        _move_nodes(branch, node, names)
        for output, result in zip(node.outputs, results, strict=True):
            _give(node, output, result)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return has_changed


def lift_constants(model: ir.Model) -> None:
    """Make constants of subgraphs constants of the main graph, which subgraphs may read, equal ones once.

    Only those of the main graph are packed. A constant that is the output of a subgraph stays in it, and so do strings.
    """
    lifted: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
    names = Counter(_defined(model.graph))
    for graph in list(model.graph.subgraphs()):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or value.is_graph_input() or value.is_graph_output():
                continue
            if tensor.dtype == ir.DataType.STRING:  # which has no bytes to compare
                continue
            key = tensor.dtype, tuple(tensor.shape.numpy()), sha256(tensor.tobytes()).digest()
            if key in lifted:
                value.replace_all_uses_with(lifted[key])
                del graph.initializers[value.name or ""]
                _forget(names, [value.name or ""])
            else:
                _move_constant(model, graph, value, names)
                lifted[key] = value


def _move_constant(model: ir.Model, graph: ir.Graph, value: ir.Value, names: Counter[str]) -> None:
    """names: how often each is in the model."""
    del graph.initializers[value.name or ""]
    _forget(names, [value.name or ""])
    value.name = _free(value.name or "constant", names)
    names[value.name] += 1
    model.graph.register_initializer(value)


def _move_nodes(branch: ir.Graph, target: ir.Node, names: Counter[str]) -> None:
    """Branches of one If may use a name twice, so every value takes one that is free in the whole model.

    names: how often each is in the model.
    """
    assert target.graph is not None
    for node in list(branch):
        branch.remove(node)
        node.name = None
        outputs = [output for output in node.outputs if output.name]
        inner = [name for graph in _graphs_in(node) for name in _defined(graph)]  # may be those of the outputs
        _forget(names, [*(str(output.name) for output in outputs), *inner])
        for output in outputs:
            output.name = _free(str(output.name), names)
            names[output.name] += 1
        names.update(inner)
        target.graph.insert_before(target, node)


def _graphs_in(node: ir.Node) -> Iterator[ir.Graph]:
    yield from (each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH)


def _forget(names: Counter[str], gone: Iterable[str]) -> None:
    for name in gone:
        names[name] -= 1
        if not names[name]:
            del names[name]


def _give(node: ir.Node, output: ir.Value, result: ir.Value) -> None:
    """Let the branch's result stand for the If's output, through an Identity where it cannot bear its name."""
    if not take_over(output, result):
        identity = insert_before(node, "Identity", [result])
        take_over(output, identity)
