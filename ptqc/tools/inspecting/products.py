"""Multiply-accumulates of one run, from the shapes that the graph declares or that follow from them."""

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from ptqc.ir.layers import Layer
from ptqc.ir.nodes import input_of
from ptqc.ir.operators import Trait, named

RECURRENT = named(Trait.RECURRENT)


def products_of_a_run(model: ir.Model, layers: Sequence[Layer]) -> int | None:
    """Products of one sample: of layers, of recurrent operators, and of matrices that are both computed.

    None where one of them has free sizes other than the batch, the first axis (of what recurrent operators read, the
    second one).
    """
    of_layers, found = {layer.name: layer for layer in layers}, list[int | None]()
    for node in model.graph:
        output = node.outputs[0]
        if layer := of_layers.get(str(output.name)):
            found.append(_product(output.shape, layer.width))
        elif node.op_type in RECURRENT:
            found.append(_recurrent(node))
        elif node.op_type == "MatMul":
            summed = _last(input_of(node, 0))
            found.append(None if summed is None else _product(output.shape, summed))
    return sum(each for each in found if each is not None) if None not in found else None


def _product(shape: ir.Shape | None, summed: int, batch: int = 0) -> int | None:
    """Products of an output of this shape, each number of which is a sum of so many. batch: its axis, which counts as 1
    where it is free.
    """
    if shape is None or not len(shape):
        return None
    sizes = [1 if axis == batch and not isinstance(size, int) else size for axis, size in enumerate(shape)]
    known = [size for size in sizes if isinstance(size, int)]
    return prod(known) * summed if len(known) == len(sizes) else None


def _recurrent(node: ir.Node) -> int | None:
    """Every step multiplies both matrices, of each direction, with the input and with the state before."""
    x, *matrices = (input_of(node, place) for place in range(3))
    if x is None or x.shape is None:
        return None
    by_batch = "layout" in node.attributes and node.attributes["layout"].as_int() == 1
    steps = _product(ir.Shape(list(x.shape)[:2]), 1, 0 if by_batch else 1)
    weights = [None if value is None or value.shape is None else _product(value.shape, 1, -1) for value in matrices]
    known = [size for size in weights if size is not None]
    return None if steps is None or len(known) < len(weights) else steps * sum(known)


def _last(value: ir.Value | None) -> int | None:
    """The size of the last axis, None where it is free."""
    last = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return last if isinstance(last, int) else None
