"""Operators that give the same entries another arrangement."""

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operators, whole_numbers
from ptqc.ir.nodes import integer, integers, text


def _reshape(node: ir.Node, x: Tensor, shape: Tensor) -> Tensor:
    sizes = whole_numbers(shape)
    if not integer(node, "allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: ir.Node, x: Tensor) -> Tensor:
    axis = integer(node, "axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(x.shape[:axis].numel(), x.shape[axis:].numel())


def _squeeze(node: ir.Node, x: Tensor, axes_input: Tensor | None = None) -> Tensor:
    axes = integers(node, "axes", []) if axes_input is None else whole_numbers(axes_input)
    return x.squeeze(tuple(axes)) if axes else x.squeeze()


def _unsqueeze(node: ir.Node, x: Tensor, axes_input: Tensor | None = None) -> Tensor:
    axes = integers(node, "axes", []) if axes_input is None else whole_numbers(axes_input)
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(node: ir.Node, x: Tensor) -> Tensor:
    return x.permute(integers(node, "perm", list(reversed(range(x.ndim)))))


def _expand(_node: ir.Node, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, whole_numbers(shape)))


def _tile(_node: ir.Node, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(whole_numbers(repeats))


def _concat(node: ir.Node, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, integer(node, "axis", 0))


def _split(node: ir.Node, x: Tensor, split: Tensor | None = None) -> Sequence[Tensor]:
    axis = integer(node, "axis", 0)
    if split is not None:
        return list(x.split(whole_numbers(split), axis))
    count = integer(node, "num_outputs", len(node.outputs))
    return list(x.split(-(-x.shape[axis] // count), axis))


def _depth_to_space(node: ir.Node, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    block = integer(node, "blocksize", 1)
    depth = channels // block**2
    if text(node, "mode", "DCR") == "DCR":
        x = x.reshape(batch, block, block, depth, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, depth, block, block, height, width).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, depth, height * block, width * block)


def _space_to_depth(node: ir.Node, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    block = integer(node, "blocksize", 1)
    x = x.reshape(batch, channels, height // block, block, width // block, block)
    x = x.permute(0, 3, 5, 1, 2, 4) if text(node, "mode", "DCR") == "DCR" else x.permute(0, 1, 3, 5, 2, 4)
    return x.reshape(batch, channels * block**2, height // block, width // block)


def _identity(_node: ir.Node, x: Tensor) -> Tensor:
    return x


OPERATORS: Operators = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Reshape": _reshape,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
