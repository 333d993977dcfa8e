"""What an operator looks like: a function of the node (for its attributes) and of the inputs in ONNX's order."""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch
from torch import Tensor

# Absent inputs in the middle are None, those at the end are left out. Several outputs come as a sequence.
Operator = Callable[..., Tensor | Sequence[Tensor]]
Operators = Mapping[str, Operator]
# Why a node cannot be run in spite of its operator being known; None if it can.
Check = Callable[[ir.Node], str | None]


def of_inputs(function: Callable[..., Tensor]) -> Operator:
    """An operator without attributes."""
    return lambda _node, *inputs: function(*inputs)


def whole_numbers(values: Tensor) -> list[int]:
    """The entries of a vector of shapes, axes or repeats."""
    return [int(value) for value in values.reshape(-1).tolist()]


def wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices as int64, negative ones counted from the end."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)
