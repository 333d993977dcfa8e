"""Reading and writing entries by their indices."""

from math import prod

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operators, whole_numbers, wrapped
from ptqc.ir.nodes import integer, text

REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _slice(
    _node: ir.Node,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes_input: Tensor | None = None,
    steps_input: Tensor | None = None,
) -> Tensor:
    first, last = whole_numbers(starts), whole_numbers(ends)
    axes = list(range(len(first))) if axes_input is None else whole_numbers(axes_input)
    steps = [1] * len(first) if steps_input is None else whole_numbers(steps_input)
    for axis, start, end, step in zip(axes, first, last, steps, strict=True):
        x = _sliced(x, axis % x.ndim, slice(start, end, step))
    return x


def _sliced(x: Tensor, axis: int, part: slice) -> Tensor:
    start, end, step = part.indices(x.shape[axis])
    if step > 0:
        return x[(slice(None),) * axis + (slice(start, max(start, end), step),)]
    return x.index_select(axis, torch.arange(start, min(start, end), step, device=x.device))


def _gather(node: ir.Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = integer(node, "axis", 0) % x.ndim
    entries = x.index_select(axis, wrapped(indices, x.shape[axis]).reshape(-1))
    return entries.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_elements(node: ir.Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = integer(node, "axis", 0)
    return x.gather(axis, wrapped(indices, x.shape[axis]))


def _flat(indices: Tensor, sizes: list[int]) -> Tensor:
    """Index tuples (along the last axis) into axes of the given sizes, as indices into these axes taken together."""
    columns = [wrapped(indices[..., i], size) * prod(sizes[i + 1 :]) for i, size in enumerate(sizes)]
    return torch.stack(columns).sum(0)


def _gather_nd(node: ir.Node, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth = integer(node, "batch_dims", 0), indices.shape[-1]
    rows, inner = prod(x.shape[:batch]), x.shape[batch : batch + depth]
    trailing = x.shape[batch + depth :]
    flat = _flat(indices, list(inner)).reshape(rows, -1)
    offsets = torch.arange(rows, device=x.device).unsqueeze(1) * prod(inner)
    entries = x.reshape(rows * prod(inner), *trailing).index_select(0, (flat + offsets).reshape(-1))
    return entries.reshape([*indices.shape[:-1], *trailing])


def _scatter_elements(node: ir.Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = integer(node, "axis", 0)
    return _scattered(node, x, axis, wrapped(indices, x.shape[axis]), updates)


def _scatter_nd(node: ir.Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    rows = x.reshape(prod(x.shape[:depth]), -1)
    flat = _flat(indices, list(x.shape[:depth])).reshape(-1, 1).expand(-1, rows.shape[1])
    return _scattered(node, rows, 0, flat, updates.reshape(flat.shape)).reshape(x.shape)


def _scattered(node: ir.Node, x: Tensor, axis: int, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = text(node, "reduction", "none")
    if reduction == "none":
        return x.scatter(axis, indices, updates)
    return x.scatter_reduce(axis, indices, updates, REDUCTIONS[reduction])


OPERATORS: Operators = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
}
