"""Values that no element of an input enters: they follow from constants, and from shapes once the sizes are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ptqc.codegen.program.batching import Seen
from ptqc.codegen.program.probing import fit
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import QuantParams
from ptqc.ir.integer_arithmetic import EVERY_CODE
from ptqc.ir.nodes import constant, integer, required
from ptqc.ir.operators import Trait, named

# Running a few nodes of a model in ONNX Runtime, for values that are needed when kernels are made.


def standalone(
    node: ir.Node, value_of: Callable[[ir.Value], np.ndarray]
) -> tuple[onnx.NodeProto, dict[str, np.ndarray]]:
    """The node from a value x to a value y, and the constants that are its other inputs."""
    constants = {f"c{i}": value_of(v) for i, v in enumerate(node.inputs) if i and v is not None}
    proto = ir.serde.serialize_node(node)
    proto.input[:] = ["x", *(f"c{i}" if f"c{i}" in constants else "" for i in range(1, len(node.inputs)))]
    proto.output[:] = ["y"]
    return proto, constants


def compute(
    model: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    feeds: Feeds,
    outputs: Sequence[str],
) -> dict[str, np.ndarray]:
    """Values of the named outputs of nodes in the model's opset."""
    return opened(model, nodes, constants, feeds, outputs).run(feeds)


def table_between(
    model: ir.Model, node: ir.Node, value_of: Callable[[ir.Value], np.ndarray], x: QuantParams, y: QuantParams
) -> np.ndarray:
    """The output code of every input code of a function between codes. x, y: parameters of both."""
    proto, constants = standalone(node, value_of)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "s", "z"], ["x"]),
        proto,
        helper.make_node("QuantizeLinear", ["y", "t", "w"], ["result"]),
    ]
    for scale, zero_point, params in (("s", "z", x), ("t", "w", y)):
        constants |= {scale: np.array(params.scale, np.float32), zero_point: np.array(params.zero_point, np.uint8)}
    return compute(model, nodes, constants, {"codes": EVERY_CODE.reshape(1, -1)}, ["result"])["result"].reshape(-1)


def opened(
    model: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray],
    feeds: Feeds,
    outputs: Sequence[str],
) -> Runner:
    """What computes them, for any feeds of these types and shapes."""
    graph = onnx.GraphProto(name="g", node=nodes)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    for name, array in feeds.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return Runner(onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=imports))


# Operators that look at the shape of their input only.
SIZES = named(Trait.MEASURES)
Shapes = Mapping[str, tuple[int, ...]]


# More numbers than this are no list of sizes or places.
LONGEST = 64


@dataclass(frozen=True)
class Folded:
    """Values that no element of an input enters. constants: the same for all. of_batch: names of those of the batch
    size alone. numbers: whole numbers that follow from the lengths of a run, as they are at each of `Seen.points`.
    largest: of other whole numbers that follow from them, the largest at each point.
    """

    constants: dict[str, np.ndarray]
    of_batch: set[str] = field(default_factory=set)
    numbers: dict[str, tuple[np.ndarray, ...]] = field(default_factory=dict)
    largest: dict[str, tuple[int, ...]] = field(default_factory=dict)


def fold(model: ir.Model, seen: Seen, batch: int | None) -> Folded:
    """Values that are the same for every input, and those that follow from the batch size or from lengths alone.

    seen: of every value for a batch of this size, which is the first axis; None: nothing varies with a batch.
    """
    results = {
        name: array for name, value in model.graph.initializers.items() if (array := constant(value)) is not None
    }
    results |= seen.fixed
    nodes = _nodes(model, set(results))
    if seen.lengths:
        return _of_lengths(model, nodes, results, seen)
    once = _values(model, nodes, results, seen)
    if batch is None or not any(node.op_type in SIZES for node in nodes):
        return Folded(results | once)
    same = dict(once)
    for size in {1, 2 * batch} - {batch}:
        shapes = {name: _resized(shape, batch, size) for name, shape in seen.shapes.items()}
        other = _values(model, nodes, results, replace(seen, shapes=shapes))
        same = {name: array for name, array in same.items() if np.array_equal(array, other[name])}
    return Folded(results | same, once.keys() - same.keys())


def _of_lengths(model: ir.Model, nodes: list[ir.Node], result: dict[str, np.ndarray], seen: Seen) -> Folded:
    """Values at each point: those that are always the same, and numbers that are sums of lengths."""
    moving = _moving(nodes)
    result = result | _values(model, [node for node in nodes if node not in moving], result, seen)
    runs = [_values(model, moving, result, seen.at(point)) for point in seen.points]
    constants, numbers = dict(result), dict[str, tuple[np.ndarray, ...]]()
    largest: dict[str, tuple[int, ...]] = {}
    for name, first in (runs[0] if runs else {}).items():
        arrays = tuple(run[name] for run in runs)
        if all(np.array_equal(first, other, equal_nan=first.dtype.kind == "f") for other in arrays):
            constants[name] = first
        elif _are_sums(seen, arrays):
            numbers[name] = arrays
        elif first.dtype.kind == "i":
            largest[name] = tuple(int(array.max(initial=0)) for array in arrays)
    return Folded(constants, numbers=numbers, largest=largest)


def _moving(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes that sizes enter."""
    result, moving = set[str](), list[ir.Node]()
    for node in nodes:
        if node.op_type in SIZES or any(value is not None and value.name in result for value in entering(node)):
            moving.append(node)
            result |= {str(value.name) for value in node.outputs}
    return moving


def _are_sums(seen: Seen, arrays: Sequence[np.ndarray]) -> bool:
    """Whether arrays hold the same few whole numbers, or sums of lengths."""
    first = arrays[0]
    if first.dtype.kind != "i" or first.size > LONGEST or any(array.shape != first.shape for array in arrays):
        return False
    return all(
        fit(seen.points, list(map(int, entry))) is not None for entry in zip(*map(np.ravel, arrays), strict=True)
    )


def _resized(shape: tuple[int, ...], batch: int, size: int) -> tuple[int, ...]:
    return (size, *shape[1:]) if shape[:1] == (batch,) else shape


def _nodes(model: ir.Model, known: set[str]) -> list[ir.Node]:
    """Nodes that read nothing but constants, shapes, and what other such nodes make."""
    known, nodes = set(known), []
    for node in model.graph:
        inner = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
        tensors = all(isinstance(value.type, ir.TensorType) for value in node.outputs if value.type is not None)
        is_known = all(value is None or value.name in known for value in entering(node))
        if not inner and tensors and not node.domain and (is_known or node.op_type in SIZES):
            nodes.append(node)
            known |= {str(value.name) for value in node.outputs}
    return nodes


def entering(node: ir.Node) -> Sequence[ir.Value | None]:
    """Inputs of which not only the type counts."""
    return node.inputs[:1] if node.op_type == "CastLike" else node.inputs


def _proto(node: ir.Node, dtypes: Mapping[str, str]) -> onnx.NodeProto:
    if node.op_type != "CastLike":
        return ir.serde.serialize_node(node)
    value = node.outputs[0]
    wanted = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[str(value.name)]))
    return onnx.helper.make_node("Cast", [str(required(node.inputs[0]).name)], [str(value.name)], to=wanted)


def _values(
    model: ir.Model, nodes: list[ir.Node], constants: Mapping[str, np.ndarray], seen: Seen
) -> dict[str, np.ndarray]:
    """What the nodes make where values have these shapes and types."""
    sizes = {str(node.outputs[0].name): _sizes(node, seen.shapes) for node in nodes if node.op_type in SIZES}
    remaining = [node for node in nodes if node.op_type not in SIZES]
    wanted = [str(value.name) for node in remaining for value in node.outputs]
    read = {str(value.name) for node in remaining for value in entering(node) if value is not None}
    needed = {name: array for name, array in {**constants, **sizes}.items() if name in read}
    return sizes | (
        compute(model, [_proto(node, seen.dtypes) for node in remaining], needed, {}, wanted) if wanted else {}
    )


def _sizes(node: ir.Node, shapes: Shapes) -> np.ndarray:
    shape = shapes[str(node.inputs[0].name)]  # type: ignore[union-attr]
    if node.op_type == "Size":
        return np.array(np.prod(shape), np.int64)
    return np.array(shape[integer(node, "start", 0) : integer(node, "end", len(shape))], np.int64)
