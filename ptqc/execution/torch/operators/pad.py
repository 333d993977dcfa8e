"""Padding by a constant or by entries of the tensor itself."""

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operators, whole_numbers
from ptqc.execution.torch.operators.window import padded
from ptqc.ir.nodes import text


def _pad(
    node: ir.Node, x: Tensor, pads: Tensor, value: Tensor | None = None, axes_input: Tensor | None = None
) -> Tensor:
    result = whole_numbers(pads)
    axes = list(range(x.ndim)) if axes_input is None else whole_numbers(axes_input)
    begin, end = [0] * x.ndim, [0] * x.ndim
    for axis, before, after in zip(axes, result[: len(axes)], result[len(axes) :], strict=True):
        begin[axis], end[axis] = before, after
    mode = text(node, "mode", "constant")
    if mode == "constant":
        return padded(x, begin, end, 0 if value is None else value.item())
    x = padded(x, [min(n, 0) for n in begin], [min(n, 0) for n in end])
    for axis, (before, after) in enumerate(zip(begin, end, strict=True)):
        if before > 0 or after > 0:
            positions = torch.arange(-max(before, 0), x.shape[axis] + max(after, 0), device=x.device)
            x = x.index_select(axis, _source(positions, x.shape[axis], mode))
    return x


def _source(positions: Tensor, size: int, mode: str) -> Tensor:
    """Where the entries at positions around 0 … size−1 come from."""
    match mode:
        case "edge":
            return positions.clamp(0, size - 1)
        case "wrap":
            return positions % size
    period = max(2 * (size - 1), 1)
    folded = positions % period
    return torch.where(folded < size, folded, period - folded)


OPERATORS: Operators = {"Pad": _pad}
