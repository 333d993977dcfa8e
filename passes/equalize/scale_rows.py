"""Products whose rows (tokens) differ much in size, with a scale for each row: only what is left is rounded.

x W + b = r ∘ ((x / r) W) + b, where r is the largest magnitude of each row of x. All rows of x / r reach from -1 to 1,
so one scale for all of them is as good as one for each. (Scales per token: ZeroQuant, Yao et al. 2022, arXiv
2206.01861.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.editing import add_constant, insert_before, unique_name
from ptqc.ir.layers import Layer, find_layers
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.equalize.split_outliers import splittable

# In the place of r where a row is zero.
SMALLEST = 1e-30


def scaled_rows(tensor: str) -> str:
    """The name of a tensor whose rows are divided by their largest magnitudes."""
    return f"{tensor}_rows"


def scales_of_rows(rest: str) -> list[str]:
    """The names of sizes, the largest of each row, and what a tensor is divided by to give `rest`; and that."""
    return [f"{rest}_sizes", f"{rest}_largest", f"{rest}_scale", rest]


@dataclass(frozen=True)
class ScaleRows:
    """Divide the rows of these tensors by their largest magnitudes, for all products that read them."""

    tensors: tuple[str, ...] = ()
    name: ClassVar[str] = "scale-rows"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """One note for each tensor."""
        model = given.model
        readers = splittable(model, find_layers(model))
        notes = []
        for tensor in self.tensors:
            layers = readers[tensor]
            _scale(model, tensor, layers)
            message = f"rows are divided by their largest magnitudes in {len(layers)} layers"
            notes.append(Note(self.name, tensor, message))
        return given.rewritten(notes)


def have_rows(layers: Sequence[Layer]) -> bool:
    """Whether layers multiply rows of what they read, whose last axis is that of the channels."""
    return not any(layer.is_convolution for layer in layers)


def _scale(model: ir.Model, tensor: str, layers: Sequence[Layer]) -> None:
    nodes = {str(node.outputs[0].name): node for node in model.graph}
    first = nodes[layers[0].name]
    read = first.inputs[0]
    assert read is not None
    rest = scaled_rows(tensor)
    names = scales_of_rows(rest)

    def put(op_type: str, inputs: list[ir.Value], like: ir.Value, hint: str) -> ir.Value:
        made = insert_before(first, op_type, inputs, name=unique_name(model.graph, hint))
        made.type, made.shape = read.type, like.shape
        return made

    last = add_constant(model, np.array([-1]), f"{rest}_axis")
    smallest = add_constant(model, np.array(SMALLEST, np.float32), "smallest_row")
    sizes = put("Abs", [read], read, names[0])
    largest = put("ReduceMax", [sizes, last], read, names[1])
    scale = put("Max", [largest, smallest], read, names[2])
    if read.shape is not None:
        largest.shape = scale.shape = ir.Shape([*list(read.shape)[:-1], 1])
    divided = put("Div", [read, scale], read, rest)
    for layer in layers:
        _scale_layer(model, nodes[layer.name], layer, divided, scale)


def _scale_layer(model: ir.Model, node: ir.Node, layer: Layer, divided: ir.Value, scale: ir.Value) -> None:
    """The same layer of rows that are divided, times their scale; a bias comes behind that."""
    assert node.graph is not None
    output = node.outputs[0]
    own = ir.node(node.op_type, [divided, node.inputs[1]], attributes=node.attributes)
    made = [own, ir.node("Mul", [own.outputs[0], scale])]
    if layer.bias is not None:
        made.append(ir.node("Add", [made[-1].outputs[0], node.inputs[2]]))
    for inner, hint in zip(made[:-1], ("by_row", "of_rows"), strict=False):
        inner.outputs[0].name = unique_name(model.graph, f"{layer.name}_{hint}")
        inner.outputs[0].type, inner.outputs[0].shape = output.type, output.shape
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], made, [output], made[-1].outputs)
