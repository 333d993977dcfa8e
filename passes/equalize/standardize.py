"""Columns of a table brought to one size in front of the layers that read them, where their units differ much.

W x + b = (W / f) ((x − m) f) + (W m + b), with a shift m and a factor f for each input channel. Neither a weight whose
columns make up for units from 1e-3 to 1e7 nor such inputs have one scale that serves all channels. Between layers, the
weights before make up for factors (`scale_channels`); in front of the first layer that takes a Sub and a Mul.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.layers import Layer, find_layers
from ptqc.ir.nodes import add_constant, initial, insert_before, set_constant, unique_name
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result
from ptqc.passes.equalize.outliers import channel_axis, splittable

# What only moves values of the model's inputs, or changes their type.
MOVING = {"Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}


@dataclass(frozen=True, eq=False)
class Standard:
    """What an input channel is moved by and multiplied with: (channels,) each. shift: zeros where there can be none."""

    shift: np.ndarray
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class Standardize:
    """Let layers read channels of one size. tensors: by name, among the `readers`."""

    tensors: Mapping[str, Standard] = field(default_factory=dict)
    name: ClassVar[str] = "standardize"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each tensor."""
        several = readers(probed.model)
        for name, standard in self.tensors.items():
            _standardize(probed.model, several[name], standard)
        notes = []
        for name, standard in self.tensors.items():
            low, high = standard.factor.min(), standard.factor.max()
            message = f"{standard.factor.size} channels carry {low:.2g} to {high:.2g} times their values"
            notes.append(Note(self.name, name, f"{message} in {len(several[name])} layers"))
        return probed.rewritten(notes)


def readers(model: ir.Model) -> dict[str, list[Layer]]:
    """The layers that read inputs of the model, moved at most, by the tensor that they read."""
    moved = {str(value.name) for value in model.graph.inputs}
    for node in model.graph:
        read = [str(value.name) for value in node.inputs if value is not None and not value.is_initializer()]
        if node.op_type in MOVING and moved.issuperset(read):
            moved.update(str(value.name) for value in node.outputs)
    return {name: several for name, several in splittable(model, find_layers(model)).items() if name in moved}


def can_shift(model: ir.Model, layers: Sequence[Layer]) -> bool:
    """Whether all layers have a bias of their own that makes up for a shift; padding is not moved."""
    graph = model.graph
    return all(
        layer.bias is not None and not layer.is_convolution and len(graph.initializers[layer.bias].uses()) == 1
        for layer in layers
    )


def columns_of(layer: Layer, weight: np.ndarray) -> np.ndarray:
    """A weight with its input channels first: (channels, everything else)."""
    axis = 1 if layer.is_convolution else 1 - layer.channel_axis
    return np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)


def _standardize(model: ir.Model, layers: Sequence[Layer], standard: Standard) -> None:
    nodes = {str(node.outputs[0].name): node for node in model.graph}
    first = nodes[layers[0].name]
    value = first.inputs[0]
    assert value is not None
    for layer in layers:
        weight = initial(model, layer.weight).astype(np.float64)
        if layer.bias is not None and standard.shift.any():
            bias = initial(model, layer.bias)
            moved = bias + layer.matrix(weight)[0] @ standard.shift
            set_constant(model, layer.bias, moved.astype(np.float32))
        axis = 1 if layer.is_convolution else 1 - layer.channel_axis
        sizes = [-1 if place == axis else 1 for place in range(weight.ndim)]
        set_constant(model, layer.weight, (weight / standard.factor.reshape(sizes)).astype(np.float32))
    result = value
    for op_type, array in (("Sub", standard.shift), ("Mul", standard.factor)):
        if op_type == "Sub" and not array.any():
            continue
        name = unique_name(model.graph, f"{value.name}_{'centred' if op_type == 'Sub' else 'standard'}")
        constant = add_constant(model, _along_channels(array, layers[0]), f"{name}_{op_type.lower()}")
        step = insert_before(first, op_type, [result, constant], name=name)
        step.type, step.shape = value.type, value.shape
        result = step
    for layer in layers:
        nodes[layer.name].replace_input_with(0, result)


def _along_channels(array: np.ndarray, layer: Layer) -> np.ndarray:
    """A number for each channel, to be broadcast against what a layer reads."""
    tail = (1,) * len(layer.kernel) if channel_axis(layer) == 1 else ()
    return array.astype(np.float32).reshape(-1, *tail)
