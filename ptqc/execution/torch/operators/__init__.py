"""Every ONNX operator that torch runs here, by name: each file of this package adds its group."""

from ptqc.execution.torch.operators import (
    activation,
    convolution,
    elementwise,
    indexing,
    linear,
    making,
    normalization,
    pad,
    pool,
    reduction,
    resize,
    selection,
    shape,
)
from ptqc.execution.torch.operators.signature import Check, Operators

GROUPS = (
    activation,
    convolution,
    elementwise,
    indexing,
    linear,
    making,
    normalization,
    pad,
    pool,
    reduction,
    resize,
    selection,
    shape,
)

OPERATORS: Operators = {name: operator for group in GROUPS for name, operator in group.OPERATORS.items()}
CHECKS: dict[str, Check] = {**normalization.CHECKS, **pool.CHECKS, **resize.CHECKS, **making.CHECKS}
