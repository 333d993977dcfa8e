"""Reductions over axes, given as an attribute or as an input, and running sums."""

from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operator, Operators, whole_numbers
from ptqc.ir.nodes import integer, integers

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(reduction: Reduction) -> Operator:
    def operator(node: ir.Node, x: Tensor, axes_input: Tensor | None = None) -> Tensor:
        axes = integers(node, "axes", []) if axes_input is None else whole_numbers(axes_input)
        if not axes and integer(node, "noop_with_empty_axes", 0):
            return x
        axes = [axis % x.ndim for axis in axes] or list(range(x.ndim))
        return reduction(x, axes, bool(integer(node, "keepdims", 1))).to(x.dtype)

    return operator


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keep) if axes else x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        x = x.to(torch.float64)
    return x.mean(axes, keep) if axes else x


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keep)
    return x


def _l1(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum(x.abs(), axes, keep)


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum_square(x, axes, keep).sqrt()


def _sum_square(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


def _log_sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return _sum(x, axes, keep).log()


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.logsumexp(axes, keep)


def _arg(node: ir.Node, x: Tensor, find: Callable[..., Tensor]) -> Tensor:
    """Index of the first (or last) extreme entry along an axis."""
    axis, keep = integer(node, "axis", 0), bool(integer(node, "keepdims", 1))
    if not integer(node, "select_last_index", 0):
        return find(x, axis, keep)
    return x.shape[axis] - 1 - find(x.flip(axis), axis, keep)


def _arg_max(node: ir.Node, x: Tensor) -> Tensor:
    return _arg(node, x, torch.argmax)


def _arg_min(node: ir.Node, x: Tensor) -> Tensor:
    return _arg(node, x, torch.argmin)


def _cum_sum(node: ir.Node, x: Tensor, axis_input: Tensor) -> Tensor:
    (axis,) = whole_numbers(axis_input)
    x = x.flip(axis) if integer(node, "reverse", 0) else x
    sums = x.cumsum(axis, dtype=x.dtype)
    sums = sums - x if integer(node, "exclusive", 0) else sums
    return sums.flip(axis) if integer(node, "reverse", 0) else sums


OPERATORS: Operators = {
    "ArgMax": _arg_max,
    "ArgMin": _arg_min,
    "CumSum": _cum_sum,
    "ReduceL1": _reduce(_l1),
    "ReduceL2": _reduce(_l2),
    "ReduceLogSum": _reduce(_log_sum),
    "ReduceLogSumExp": _reduce(_log_sum_exp),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_prod),
    "ReduceSum": _reduce(_sum),
    "ReduceSumSquare": _reduce(_sum_square),
}
