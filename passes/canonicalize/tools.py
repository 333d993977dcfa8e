"""Writing what an operator computes in others: a rule for each, and the pass over all nodes of a domain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.ir.nodes import (
    add_constant,
    constant,
    fix_value,
    infer_shapes,
    input_of,
    insert_before,
    integer,
    names_of,
    nodes_of,
    number,
    producer,
    remove_dead,
    replace_constant,
    required,
    scalar,
    take_over,
)
from ptqc.ir.operators import Trait, named
from ptqc.notes import Level, Note


class Writer:
    """Writes operators in front of a node of a model."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.hint = node.outputs[0].name or node.op_type

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """The output of a new node."""
        return self.ops(op_type, 1, *inputs, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, count: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        result = ir.node(op_type, inputs, attributes=attributes, domain=domain, num_outputs=count)
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, result)
        return result.outputs

    def constant(self, array: np.ndarray, role: str) -> ir.Value:
        """A new initializer named after the node and its role there."""
        return add_constant(self.model, array, f"{self.hint}_{role}")

    def real(self, number: float, role: str) -> ir.Value:
        """A float32 scalar."""
        return self.constant(np.array(number, np.float32), role)

    def input(self, index: int = 0) -> ir.Value:
        """An input that the node cannot be without."""
        return required(input_of(self.node, index))

    def optional(self, index: int) -> ir.Value | None:
        """An input of the node, None where it is absent."""
        return input_of(self.node, index)

    def axis(self, axis: int) -> ir.Value:
        """The axes input of a reduction over one axis."""
        return self.constant(np.array([axis], np.int64), "axis")


# Writes in front of a node what stands for its outputs, or says why that cannot be done.
Rule = Callable[[Writer], list[ir.Value] | str]


def write_out(model: ir.Model, step: str, domain: str, rules: Mapping[str, Rule]) -> list[Note]:
    """Replace the nodes of a domain by what the rules of their operators write; one note for each node.

    Operators without a rule stay.
    """
    notes = [_replace(model, node, step, rules) for node in list(model.graph.all_nodes()) if node.domain == domain]
    if notes:
        remove_dead(model)
        common.RemoveUnusedOpsetsPass()(model)
        infer_shapes(model)
    return notes


def _replace(model: ir.Model, node: ir.Node, step: str, rules: Mapping[str, Rule]) -> Note:
    subject = node.outputs[0].name or ""
    rule = rules.get(node.op_type)
    result = "none of ONNX's own computes the same" if rule is None else _written(model, node, rule)
    if isinstance(result, str):
        return Note(step, subject, f"{node.op_type} stays as it is, in float: {result}", Level.SKIPPED)
    for old, new in zip(node.outputs, result, strict=False):
        _stand_for(node, old, new)
    return Note(step, subject, f"{node.op_type} written in other operators")


def _written(model: ir.Model, node: ir.Node, rule: Rule) -> list[ir.Value] | str:
    """What the rule says, once more where it refuses an input whose shape is known since what makes it was written."""
    written = rule(Writer(model, node))
    if isinstance(written, str) and any(value is not None and value.shape is None for value in node.inputs):
        infer_shapes(model)
        written = rule(Writer(model, node))
    return written


def _stand_for(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Let a value stand for one of the node's, with its type and shape."""
    if old.is_graph_output() and (new.producer() is None or new.is_graph_output() or new.uses()):
        new = insert_before(node, "Identity", [new])
    if new.dtype is None or new.shape is None:
        new.type, new.shape = old.type, old.shape
    take_over(old, new)


# Folding `a * y + c`, with a and c per channel, into the layer that gives y.
#
# Conv and ConvTranspose have their channels on axis 1 of y, and so has Gemm. With W' = a W and b' = a b + c the layer
# gives a * (W x + b) + c at once. Computed in float64, stored in float32.

LAYERS = ("Conv", "ConvTranspose", "Gemm")


def layer_problem(node: ir.Node) -> str | None:
    """Why nothing can be folded into the layer, None if something can."""
    weight, bias = constant(input_of(node, 1)), input_of(node, 2)
    if weight is None:
        return "the layer's weight is not constant"
    if len(node.inputs[1].uses()) > 1:  # type: ignore[union-attr]
        return "the layer's weight is shared with another layer"
    if bias is not None:
        array = constant(bias)
        if array is None:
            return "the layer's bias is not constant"
        if array.size not in (1, channels_of(node)) or array.shape[-1:] not in ((), (array.size,)):
            return "the layer's bias is not one value per channel"
    return None


def channels_of(node: ir.Node) -> int:
    """Channels that the layer gives."""
    weight = constant(node.inputs[1])
    assert weight is not None
    if node.op_type == "Conv":
        return int(weight.shape[0])
    if node.op_type == "ConvTranspose":
        return int(weight.shape[1]) * integer(node, "group", 1)
    return int(weight.shape[0 if integer(node, "transB", 0) else 1])


def scale_outputs(model: ir.Model, node: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let the layer give scale * y + shift instead of y; both hold one value per channel.

    Expects a layer in which `layer_problem` finds nothing.
    """
    weight = constant(node.inputs[1])
    assert weight is not None
    name = node.outputs[0].name or node.op_type
    replace_constant(model, node, 1, _scaled(node, weight, scale), f"{name}_weight")
    bias = constant(input_of(node, 2))
    old = np.zeros(1) if bias is None else bias.astype(np.float64).reshape(-1)
    if node.op_type == "Gemm":
        old = old * number(node, "beta", 1.0)
        node.attributes.pop("beta", None)
    new = np.broadcast_to(old, scale.shape) * scale + shift
    if bias is not None or new.any():
        replace_constant(model, node, 2, new.astype(np.float32), f"{name}_bias")


def _scaled(node: ir.Node, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    wide = weight.astype(np.float64)
    if node.op_type == "Gemm":
        columns = scale[:, None] if integer(node, "transB", 0) else scale[None, :]
        return np.asarray(wide * columns, np.float32)
    if node.op_type == "Conv":
        return np.asarray(wide * scale.reshape(-1, *[1] * (weight.ndim - 1)), np.float32)
    groups = integer(node, "group", 1)
    grouped = wide.reshape(groups, -1, *weight.shape[1:])
    factors = scale.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return np.asarray((grouped * factors).reshape(weight.shape), np.float32)


def scale_inputs(model: ir.Model, node: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Let a Conv read x where it read scale * x + shift; exact where it pads nothing or the shift is zero.

    Expects a Conv in which `layer_problem` finds nothing.
    """
    weight = constant(node.inputs[1])
    assert weight is not None
    groups = integer(node, "group", 1)
    wide = weight.astype(np.float64).reshape(groups, -1, *weight.shape[1:])
    tail = (groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    offset = (wide * shift.reshape(tail)).reshape(weight.shape[0], -1).sum(axis=1)
    name = node.outputs[0].name or node.op_type
    scaled = (wide * scale.reshape(tail)).reshape(weight.shape).astype(np.float32)
    replace_constant(model, node, 1, scaled, f"{name}_weight")
    bias = constant(input_of(node, 2))
    if bias is not None or offset.any():
        old = 0.0 if bias is None else bias.astype(np.float64)
        replace_constant(model, node, 2, (old + offset).astype(np.float32), f"{name}_bias")


# Sizes that are known although others of the same tensor are not: what Shape, Gather and Slice take from them.
#
# The batch of an exported model is symbolic, its channels are numbers; Gather(Shape(x), 1) is a constant all the same.


def fold_known_sizes(model: ir.Model) -> None:
    """Replace by constants what only takes known sizes from a shape."""
    taken = names_of(model.graph)
    for node in nodes_of(model, "Shape", "Gather", "Slice", "Size"):
        sizes = _sizes_taken(node)
        if sizes is not None and _all_known(sizes):
            fix_value(model, node.outputs[0], np.array(sizes, np.int64), taken)


def _all_known(sizes: np.ndarray) -> bool:
    return all(isinstance(size, int) for size in sizes.ravel().tolist())


def _sizes_taken(node: ir.Node) -> np.ndarray | None:
    """The node's output, with None for each size that is not known; None if it takes no sizes."""
    if node.op_type == "Shape":
        return _shape(node)
    if node.op_type == "Size":
        return _count(node)
    source = producer(node.inputs[0], "Shape")
    sizes = _shape(source) if source is not None else None
    if sizes is None:
        return None
    return _gathered(node, sizes) if node.op_type == "Gather" else _sliced(node, sizes)


def _shape(node: ir.Node) -> np.ndarray | None:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    sizes = [size if isinstance(size, int) else None for size in source.shape]
    return np.array(sizes, object)[integer(node, "start", 0) : integer(node, "end", len(sizes))]


def _count(node: ir.Node) -> np.ndarray | None:
    sizes = _shape(node)
    return None if sizes is None or not _all_known(sizes) else np.array(int(np.prod(sizes)), object)


def _gathered(node: ir.Node, sizes: np.ndarray) -> np.ndarray | None:
    indices = constant(node.inputs[1])
    if indices is None or np.any(indices >= sizes.size) or np.any(indices < -sizes.size):
        return None
    return np.asarray(np.take(sizes, indices), object)


def _sliced(node: ir.Node, sizes: np.ndarray) -> np.ndarray | None:
    start, end = (scalar(input_of(node, index)) for index in (1, 2))
    if start is None or end is None or (input_of(node, 4) is not None and scalar(input_of(node, 4)) != 1):
        return None
    return np.asarray(sizes[int(start) : int(end)], object)


# What rounding alone makes of a model's outputs: the yardstick for passes that compute the same in another order.
#
# Every trained constant is moved by one unit in the last place, up or down as a coin says. Deep networks make
# many times as much of it as shallow ones, and no share of an output's size fits both.

WEIGHTED = named(Trait.WEIGHTED)


def rounded_otherwise(model: ir.Model) -> ir.Model:
    """A copy of a model whose float32 weights are their neighbours."""
    copy, random = model.clone(), np.random.default_rng(0)
    moved: dict[ir.Value, ir.Value] = {}
    for node in list(copy.graph):
        for place, value in enumerate(node.inputs) if node.op_type in WEIGHTED else ():
            array = constant(value)
            if value is None or array is None or array.dtype != np.float32:
                continue
            if value not in moved:
                ends = np.where(random.random(array.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf))
                moved[value] = add_constant(copy, np.nextafter(array, ends), f"{value.name}_moved")
            node.replace_input_with(place, moved[value])
    return copy
