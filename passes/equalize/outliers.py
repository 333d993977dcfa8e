"""What is done about a tensor that 8 bits do not hold: channels are split off, rows get a scale each, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import Layer, find_layers, is_tied
from ptqc.ir.nodes import add_constant, initial, insert_before, replace_constant, unique_name
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result, Rewrite

# Layers whose inputs have few wide channels as two: one without these channels, and a small one of these alone.
#
# y = L(x) = L(x ∘ m) + L_wide(x_wide), where m is 0 at the wide channels and 1 elsewhere, and L_wide has the weights of
# the wide channels and no bias. The range of x ∘ m is that of the other channels, which 8 bits hold; the few wide ones
# stay real numbers. (COMET, Liu et al. 2025, keeps blocks of such channels in more bits.)

# Behind a tensor's name: what is left of it, its rows divided by their sizes (`ScaleRows`), or those of what is left.
SUFFIXES = ("_narrow", "_rows", "_narrow_rows")


@dataclass(frozen=True)
class Split:
    """A tensor whose wide channels are split off in all layers that read it. channels: their places, in order."""

    tensor: str
    channels: tuple[int, ...]

    @property
    def rest(self) -> str:
        """The name of what is left of the tensor."""
        return f"{self.tensor}_narrow"

    @property
    def wide(self) -> str:
        """The name of the channels that are split off."""
        return f"{self.tensor}_wide"


@dataclass(frozen=True)
class SplitOutliers:
    """Split the wide channels of these tensors off."""

    splits: tuple[Split, ...] = ()
    name: ClassVar[str] = "split-outliers"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each tensor that is split."""
        model = probed.model
        readers = splittable(model, find_layers(model))
        notes = []
        for split in self.splits:
            layers = readers[split.tensor]
            _split(model, split, layers)
            message = f"{len(split.channels)} of its {channels_of(layers[0])} channels are multiplied separately"
            notes.append(Note(self.name, split.tensor, f"{message} in {len(layers)} layers"))
        return probed.rewritten(notes)


def splittable(model: ir.Model, layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """The layers that can be split, by the tensor that they read: those of one group with a weight of their own.

    All layers of a tensor have to take the same axis for that of its channels. What a layer with a rooted output gives
    (`Layer.keeps_sign`) must not become negative, which a sum of two might. The names of what is made have to be free.
    """
    result: dict[str, list[Layer]] = {}
    taken = {
        value.name for value in (*model.graph.inputs, *(output for node in model.graph for output in node.outputs))
    }
    for layer in layers:
        is_alone = len(model.graph.initializers[layer.weight].uses()) == 1
        is_free = taken.isdisjoint(f"{layer.input}{suffix}" for suffix in SUFFIXES)
        if layer.groups == 1 and is_alone and not layer.keeps_sign and is_free:
            result.setdefault(layer.input, []).append(layer)
    return {name: several for name, several in result.items() if len({channel_axis(layer) for layer in several}) == 1}


def channels_of(layer: Layer) -> int:
    """Input channels."""
    return layer.shape[_input_axis(layer)]


def channel_axis(layer: Layer) -> int:
    """The axis of a layer's input that its weights run along, counted from the front or from the back."""
    return 1 if layer.is_convolution else -1


def _input_axis(layer: Layer) -> int:
    """The axis of the weight that input channels run along."""
    return 1 if layer.is_convolution else 1 - layer.channel_axis


def _split(model: ir.Model, split: Split, layers: Sequence[Layer]) -> None:
    nodes = {str(node.outputs[0].name): node for node in model.graph}
    first = nodes[layers[0].name]
    tensor = first.inputs[0]
    assert tensor is not None
    axis, wide = channel_axis(layers[0]), np.array(split.channels, np.int64)
    mask = np.ones(channels_of(layers[0]), np.float32)
    mask[wide] = 0
    shaped = mask.reshape(-1, *(1,) * len(layers[0].kernel)) if layers[0].is_convolution else mask
    masked = [tensor, add_constant(model, shaped, f"{split.rest}_mask")]
    rest = insert_before(first, "Mul", masked, name=split.rest)
    picked = add_constant(model, wide, f"{split.rest}_channels")
    few = insert_before(first, "Gather", [tensor, picked], {"axis": axis}, name=unique_name(model.graph, split.wide))
    rest.type, rest.shape = tensor.type, tensor.shape
    few.type = tensor.type
    if tensor.shape is not None:
        sizes = list(tensor.shape)
        sizes[axis] = len(wide)
        few.shape = ir.Shape(sizes)
    for layer in layers:
        _split_layer(model, nodes[layer.name], layer, rest, few, wide)


def _split_layer(model: ir.Model, node: ir.Node, layer: Layer, rest: ir.Value, few: ir.Value, wide: np.ndarray) -> None:
    weight, axis = initial(model, layer.weight), _input_axis(layer)
    assert node.graph is not None
    output = node.outputs[0]
    own = ir.node(node.op_type, [rest, *node.inputs[1:]], attributes=node.attributes)
    few_weight = add_constant(model, np.ascontiguousarray(weight.take(wide, axis)), f"{layer.weight}_wide")
    beside = ir.node(node.op_type, [few, few_weight], attributes=node.attributes)
    total = ir.node("Add", [own.outputs[0], beside.outputs[0]])
    for result, hint in ((own, "of_narrow"), (beside, "of_wide")):
        result.outputs[0].name = unique_name(model.graph, f"{layer.name}_{hint}")
        result.outputs[0].type, result.outputs[0].shape = output.type, output.shape
    node.graph.insert_before(node, [own, beside])
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [total], [output], total.outputs)
    if not is_tied(model, layer):  # what meets a mask of 0 need not be 0, and a table keeps its numbers
        narrow = weight.copy()
        narrow[(slice(None),) * axis + (wide,)] = 0
        replace_constant(model, own, 1, narrow, layer.weight)


# Products whose rows (tokens) differ much in size, with a scale for each row: only what is left is rounded.
#
# x W + b = r ∘ ((x / r) W) + b, where r is the largest magnitude of each row of x. All rows of x / r reach from -1 to
# 1, so one scale for all of them is as good as one for each. (Scales per token: ZeroQuant, Yao et al. 2022, arXiv
# 2206.01861.)

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

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each tensor."""
        model = probed.model
        readers = splittable(model, find_layers(model))
        notes = []
        for tensor in self.tensors:
            layers = readers[tensor]
            _scale(model, tensor, layers)
            message = f"rows are divided by their largest magnitudes in {len(layers)} layers"
            notes.append(Note(self.name, tensor, message))
        return probed.rewritten(notes)


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
        result = insert_before(first, op_type, inputs, name=unique_name(model.graph, hint))
        result.type, result.shape = read.type, like.shape
        return result

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
    result = [own, ir.node("Mul", [own.outputs[0], scale])]
    if layer.bias is not None:
        result.append(ir.node("Add", [result[-1].outputs[0], node.inputs[2]]))
    for inner, hint in zip(result[:-1], ("by_row", "of_rows"), strict=False):
        inner.outputs[0].name = unique_name(model.graph, f"{layer.name}_{hint}")
        inner.outputs[0].type, inner.outputs[0].shape = output.type, output.shape
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], result, [output], result[-1].outputs)


@dataclass(frozen=True)
class Remedy:
    """A tensor that layers read, and what is done about it.

    channels: places of those that are split off, in order. by_row: whether what is left gets a scale for each row.
    """

    tensor: str
    channels: tuple[int, ...] = ()
    by_row: bool = False

    @property
    def rest(self) -> str:
        """The name of what layers on integers then read."""
        return scaled_rows(self._narrow) if self.by_row else self._narrow

    @property
    def description(self) -> str:
        """What messages call what was done."""
        return "split" if self.channels else "scaled by rows"

    @property
    def _narrow(self) -> str:
        return Split(self.tensor, self.channels).rest if self.channels else self.tensor


def rewrites(remedies: Sequence[Remedy]) -> list[Rewrite]:
    """What brings all of them about: rows are those that the split leaves."""
    splits = tuple(Split(remedy.tensor, remedy.channels) for remedy in remedies if remedy.channels)
    rows = tuple(remedy._narrow for remedy in remedies if remedy.by_row)
    return [*([SplitOutliers(splits)] if splits else []), *([ScaleRows(rows)] if rows else [])]


def to_json(remedies: Sequence[Remedy]) -> list[list[Any]]:
    """The document for the store."""
    return [[each.tensor, list(each.channels), *([True] if each.by_row else [])] for each in remedies]


def from_json(document: Sequence[Sequence[Any]]) -> tuple[Remedy, ...]:
    """Inverse of `to_json`."""
    return tuple(Remedy(tensor, tuple(channels), *more) for tensor, channels, *more in document)
