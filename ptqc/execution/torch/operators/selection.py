"""Operators whose output depends on where large, chosen or non-zero entries are."""

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operators, whole_numbers, wrapped
from ptqc.ir.nodes import integer


def _top_k(node: ir.Node, x: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """A stable sort, since of equal entries the first comes first, which torch.topk does not promise."""
    axis = integer(node, "axis", -1)
    values, indices = x.sort(dim=axis, descending=bool(integer(node, "largest", 1)), stable=True)
    (k,) = whole_numbers(count)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def _compress(node: ir.Node, x: Tensor, condition: Tensor) -> Tensor:
    axis = node.attributes.get("axis")
    indices = condition.nonzero().reshape(-1)
    return x.reshape(-1)[indices] if axis is None else x.index_select(axis.as_int(), indices)


def _non_zero(_node: ir.Node, x: Tensor) -> Tensor:
    return x.nonzero().T


def _one_hot(node: ir.Node, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    axis, size = integer(node, "axis", -1), int(depth.item())
    positions = wrapped(indices, size).unsqueeze(-1)
    hot = torch.arange(size, device=indices.device) == positions
    return torch.where(hot, values[1], values[0]).movedim(-1, axis)


def _trilu(node: ir.Node, x: Tensor, diagonal: Tensor | None = None) -> Tensor:
    k = 0 if diagonal is None else int(diagonal.item())
    return x.triu(k) if integer(node, "upper", 1) else x.tril(k)


OPERATORS: Operators = {
    "Compress": _compress,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "Trilu": _trilu,
}
