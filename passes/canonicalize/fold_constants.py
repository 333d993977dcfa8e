"""Compute once what depends on constants only, and remove nodes that do nothing.

Chains like ConstantOfShape -> Concat -> Reshape -> Slice -> Transpose, with which PyTorch writes the pads of a Pad,
become one initializer. Values come from ONNX Runtime, node by node, so that the size of a result is known before it
is computed. What would add much to the constants of the model stays computed: ONNX Runtime folds it when it loads the
file.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from ptqc.execution.onnxruntime import open_session, session_options
from ptqc.ir.nodes import (
    bypass,
    constant,
    fix_value,
    infer_shapes,
    inline_known_branches,
    input_of,
    insert_before,
    integer,
    lift_constants,
    names_of,
    nodes_of,
    rank,
    remove_dead,
    replace_node,
)
from ptqc.ir.operators import Trait, named
from ptqc.ir.recorded import remembered, source_of
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.canonicalize.tools import fold_known_sizes

# Folding may trade this many bytes of constants for a computation, or LARGEST_SHARE of those that the model has if that
# is less, but at least ALWAYS: more would cost file size.
MAX_BYTES = 1 << 20
LARGEST_SHARE = 0.5
ALWAYS = 1 << 16
MAX_INPUT_BYTES = 64 << 20  # a large weight may be transposed, but not at any cost in time
MAX_ROUNDS = 8


@dataclass(frozen=True)
class FoldConstants:
    """Lift Constant nodes to initializers, fold, drop Identity and Dropout, infer shapes, until nothing changes."""

    name: ClassVar[str] = "fold-constants"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Repeat while it helps: each folded value may make a shape known, and each shape a value."""
        model = probed.model
        before = _count(model)
        _lift(model)
        limit = _largest(model)
        for _ in range(MAX_ROUNDS):
            size = _count(model)
            infer_shapes(model)
            _state_types(model)
            _drop_idle(model)
            fold_known_sizes(model)
            _fold_values(model, limit)
            inline_known_branches(model)
            _lift(model)
            _make_scalars(model)
            remove_dead(model)
            if _count(model) == size:
                break
        infer_shapes(model)
        folded = before - _count(model)
        notes = [Note(self.name, "", f"{folded} constant or idle nodes folded")] if folded else []
        return probed.rewritten(notes, unsaid=True)  # constants become scalars or initializers without a note


def _count(model: ir.Model) -> int:
    return sum(1 for _ in model.graph.all_nodes())


def _lift(model: ir.Model) -> None:
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    lift_constants(model)


def _state_types(model: ir.Model) -> None:
    """Let CastLike, of whose second input only the type counts, be a Cast: of a constant it gives a constant.

    One that hands on a recorded value stays: by its second input the delivered file computes the value.
    """
    result = remembered(model)
    for node in nodes_of(model, "CastLike"):
        like = node.inputs[1]
        if like is not None and like.dtype is not None and source_of(node, result) is None:
            replace_node(node, "Cast", node.inputs[:1], {"to": like.dtype.value})


def _drop_idle(model: ir.Model) -> None:
    for node in nodes_of(model, "Identity", "Dropout", "Cast"):
        source = node.inputs[0]
        if source is not None and _is_idle(node, source):
            bypass(node, source)


def _is_idle(node: ir.Node, source: ir.Value) -> bool:
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        return source.dtype is not None and source.dtype == integer(node, "to", 0)
    training = constant(input_of(node, 2))
    infers = input_of(node, 2) is None or (training is not None and not training.any())
    return infers and not any(output.uses() or output.is_graph_output() for output in node.outputs[1:])


def _largest(model: ir.Model) -> int:
    """Bytes of the largest constant that folding may make without freeing others."""
    constants = (value.const_value for value in model.graph.initializers.values())
    total = sum(tensor.nbytes for tensor in constants if tensor is not None)
    return int(np.clip(LARGEST_SHARE * total, ALWAYS, MAX_BYTES))


def _fold_values(model: ir.Model, limit: int) -> None:
    taken = names_of(model.graph)
    for node in list(model.graph.all_nodes()):
        if node.graph is None or not _foldable(node):
            continue
        results = _evaluate(node, model.graph.opset_imports[""], limit)
        for output, array in zip(node.outputs, results or (), strict=False):
            fix_value(model, output, array, taken)


def _make_scalars(model: ir.Model) -> None:
    """ONNX Runtime takes a vector of one element for Range's scalars only as long as its shape is not known."""
    for node in nodes_of(model, "Range"):
        for index, value in enumerate(node.inputs):
            if rank(value) == 1:
                node.replace_input_with(index, insert_before(node, "Squeeze", [value]))


def _foldable(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type in named(Trait.RANDOM) or node.op_type == "Constant":
        return False
    kinds = {attribute.type for attribute in node.attributes.values()}
    if kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS} or any(out.is_graph_output() for out in node.outputs):
        return False
    return all(value is None or (value.const_value is not None and not value.is_graph_input()) for value in node.inputs)


def _constants(node: ir.Node) -> dict[str, ir.TensorProtocol]:
    values = (value for value in node.inputs if value is not None)
    return {value.name or "": value.const_value for value in values if value.const_value is not None}


def _evaluate(node: ir.Node, opset: int, limit: int) -> list[np.ndarray] | None:
    """The node's outputs; None if an input or an output is too large, or if ONNX Runtime cannot say."""
    constants = _constants(node)
    if sum(tensor.nbytes for tensor in constants.values()) > MAX_INPUT_BYTES:
        return None
    model = _single(node, constants, opset)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
        size = sum(_bytes_of(value.type.tensor_type) for value in inferred.graph.output)
        if size > max(limit, _bytes_freed(node)):
            return None
        session = open_session(model.SerializeToString(), session_options(threads=1, optimize=False))
        results = session.run(None, {})
    except Exception:  # no kernel for these types, or a shape that cannot be inferred: the node stays
        return None
    return results if all(isinstance(array, np.ndarray) and array.dtype != object for array in results) else None


def _single(node: ir.Node, constants: dict[str, ir.TensorProtocol], opset: int) -> onnx.ModelProto:
    """A model of this node alone, its constants as initializers."""
    proto = ir.serde.serialize_node(node)
    initializers = []
    for name, tensor in constants.items():
        initializers.append(ir.serde.serialize_tensor(tensor))
        initializers[-1].name = name
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]
    graph = onnx.helper.make_graph([proto], "fold", [], outputs, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def _bytes_freed(node: ir.Node) -> int:
    """Bytes of the constants that only this node reads: they go when it is folded."""
    values = {value for value in node.inputs if value is not None and len(value.uses()) == 1}
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def _bytes_of(kind: onnx.TypeProto.Tensor) -> int:
    """Bytes of a tensor of this type; raises ValueError unless every dimension is known."""
    if not kind.HasField("shape") or any(not dim.HasField("dim_value") for dim in kind.shape.dim):
        raise ValueError("the shape is not known")
    count = int(np.prod([dim.dim_value for dim in kind.shape.dim], dtype=object))
    return -(-count * int(ir.DataType(kind.elem_type).bitwidth) // 8)
