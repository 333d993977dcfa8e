"""Products by matrices that ONNX Runtime would unpack in every run become several, by a part of the outputs each.

ONNX Runtime unpacks weights when it loads a file, by folding constants. Since release 1.27 it folds no node whose
output takes over 1 GiB (`optimization.constant_folding_max_output_size_in_bytes`), which is less than such a matrix
takes in float32, or on the way there. Y = X · (W_1 W_2 …) = (X · W_1, X · W_2, …), so each part is a layer of its own
with the same integers. A table that has the numbers of such a matrix (`tied_tables`) is split along with it: rows are
picked of every part, and of these the one that has the place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import Weight, find_layers, find_weights
from ptqc.ir.nodes import (
    add_constant,
    constant,
    infer_shapes,
    initial,
    input_of,
    insert_before,
    producer,
    rank,
    remove_dead,
    replace_node,
    required,
)
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

# Numbers of a matrix that is not split. No node of an unpacking function makes more than 5.1 bytes of each, as that of
# tcq5 does; but for entropy codes it is 12, which only weights of 2^26 numbers and less have.
LARGEST = 200 * 2**20
# Channels of a part, but the last, are a multiple of this, which suits every format and kernel.
ALIGNED = 64


@dataclass(frozen=True)
class SplitProducts:
    """Split products, and tables of the same numbers, by output channels where the matrix has over LARGEST numbers."""

    name: ClassVar[str] = "split-products"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each matrix."""
        model = probed.model
        constants = (value.const_value for value in model.graph.initializers.values())
        if all(each is None or each.size <= LARGEST for each in constants):
            return probed.rewritten([])
        notes = [
            Note(self.name, weight.name, _split(model, weight))
            for weight in find_weights(model, find_layers(model))
            if weight.size > LARGEST and weight.layers and not weight.layers[0].is_convolution
        ]
        if notes:
            remove_dead(model)
            infer_shapes(model)  # what picks rows is known by the rank of the places
        return probed.rewritten(notes)


def parts_of(channels: int, width: int) -> list[slice]:
    """The channels of each part, of about as many, so that none has over LARGEST numbers of `width` a channel."""
    most = max(LARGEST // width, 1)
    aligned = ALIGNED if most >= ALIGNED else 1
    count = -(-channels // (most // aligned * aligned))
    step = -(-channels // (count * aligned)) * aligned
    return [slice(start, min(start + step, channels)) for start in range(0, channels, step)]


def _split(model: ir.Model, weight: Weight) -> str:
    """Split a matrix, every product with it, and its table; what a note says of it."""
    channels, width = weight.layers[0].channels, weight.layers[0].width
    parts = parts_of(channels, width)
    matrices = list(_constants(model, weight.name, parts, weight.channel_axis))
    nodes = {node.outputs[0].name: node for node in model.graph if node.outputs}
    for layer in weight.layers:
        _split_product(model, nodes[layer.name], layer.bias, parts, matrices, turned=weight.channel_axis == 0)
    if weight.table is not None:
        value = model.graph.initializers[weight.table]
        tables = list(_constants(model, weight.table, parts, 0))
        for node in value.consumers():
            _split_pick(model, node, parts, tables)
    both = "" if weight.table is None else ", and so is the embedding with the same values"
    return (
        f"is split by output channels into {len(parts)} matrices{both}: "
        f"ONNX Runtime would unpack one of {weight.size:,} elements in every run"
    )


def _constants(model: ir.Model, name: str, parts: Sequence[slice], axis: int) -> Iterator[ir.Value]:
    """The parts of a constant along an axis."""
    array = initial(model, name)
    for number, part in enumerate(parts):
        piece = array[(slice(None),) * axis + (part,)]
        yield add_constant(model, np.ascontiguousarray(piece), f"{name}_part{number}")


def _split_product(
    model: ir.Model, node: ir.Node, bias: str | None, parts: Sequence[slice], matrices: Sequence[ir.Value], turned: bool
) -> None:
    """Put products with the parts in the place of one, and join what they give."""
    _give_bias(model, node.inputs[0])
    biases = [] if bias is None else list(_constants(model, bias, parts, initial(model, bias).ndim - 1))
    attributes = {"transB": 1} if turned else {}
    outputs = [
        insert_before(node, node.op_type, [node.inputs[0], matrix, *biases[number : number + 1]], attributes)
        for number, matrix in enumerate(matrices)
    ]
    axes = rank(node.outputs[0]) or rank(node.inputs[0])
    replace_node(node, "Concat", outputs, {"axis": -1 if axes is None else axes - 1})


def _give_bias(model: ir.Model, value: ir.Value | None) -> None:
    """Add zeros in a LayerNormalization without bias: ONNX Runtime 1.17 aborts where several products read one."""
    node = producer(value, "LayerNormalization")
    scale = None if node is None else constant(node.inputs[1])
    if node is not None and scale is not None and input_of(node, 2) is None:
        node.resize_inputs(3)
        node.replace_input_with(2, add_constant(model, np.zeros_like(scale), f"{node.outputs[0].name}_bias"))


def _split_pick(model: ir.Model, node: ir.Node, parts: Sequence[slice], tables: Sequence[ir.Value]) -> None:
    """Pick rows of every part in the place of the whole, and take each from the part that has it.

    A place beyond the last row is one beyond the last part's, where it is refused as before.
    """
    places = required(node.inputs[1])
    dtype = np.int64 if places.dtype is None else places.dtype.numpy()

    def number(value: int, role: str) -> ir.Value:
        return add_constant(model, np.array(value, dtype), f"{node.outputs[0].name}_{role}")

    zero = number(0, "first")
    from_end = insert_before(node, "Add", [places, number(parts[-1].stop, "rows")])
    place = insert_before(node, "Where", [insert_before(node, "Less", [places, zero]), from_end, places])
    axis = add_constant(model, np.array([-1]), f"{node.outputs[0].name}_axis")
    rows: ir.Value | None = None
    for part, table in zip(parts, tables, strict=True):
        start = number(part.start, "start")
        inside = insert_before(node, "Max", [insert_before(node, "Sub", [place, start]), zero])
        if part is not parts[-1]:
            inside = insert_before(node, "Min", [inside, number(part.stop - part.start - 1, "end")])
        picked = insert_before(node, "Gather", [table, inside])
        if rows is None:
            rows = picked
            continue
        is_before = insert_before(node, "Unsqueeze", [insert_before(node, "Less", [place, start]), axis])
        choice = [is_before, rows, picked]
        if part is parts[-1]:
            replace_node(node, "Where", choice)
        else:
            rows = insert_before(node, "Where", choice)
