"""Multiply-accumulates of one run, from the shapes that the graph declares or that follow from them."""

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from ptqc.graph.layers import Layer


def products_of_a_run(model: ir.Model, layers: Sequence[Layer]) -> int | None:
    """Products of one sample; None where a layer's output has free sizes other than the batch, the first axis."""
    values = {str(value.name): value for node in model.graph for value in node.outputs}
    found = [_products(layer, values[layer.name].shape) for layer in layers]
    return sum(each for each in found if each is not None) if None not in found else None


def _products(layer: Layer, shape: ir.Shape | None) -> int | None:
    if shape is None or not len(shape):
        return None
    first, *others = shape
    if not all(isinstance(size, int) for size in others):
        return None
    rows = first if isinstance(first, int) else 1
    return rows * prod(int(size) for size in others if isinstance(size, int)) * layer.width
