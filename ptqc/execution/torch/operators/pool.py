"""Pools over windows and over everything."""

from dataclasses import replace
from math import inf

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from ptqc.execution.torch.operators.signature import Check, Operators
from ptqc.execution.torch.operators.window import WindowAttributes, padded, window_of
from ptqc.ir.nodes import integer, integers

MAXIMUM = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}
CONVOLUTION = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def _max_pool(node: ir.Node, x: Tensor) -> Tensor:
    if not x.is_floating_point():  # 8 bits, which float32 holds exactly
        return _max_pool(node, x.to(torch.float32)).to(x.dtype)
    window = window_of(node, x.shape[2:], integers(node, "kernel_shape", []))
    end = [a + b for a, b in zip(window.end, window.beyond, strict=True)]
    pool = MAXIMUM[len(window.kernel)]
    return pool(padded(x, window.begin, end, -inf), window.kernel, window.strides, 0, window.dilations)


def _average_pool(node: ir.Node, x: Tensor) -> Tensor:
    window = window_of(node, x.shape[2:], integers(node, "kernel_shape", []))
    with_pads = bool(integer(node, "count_include_pad", 0))
    if _is_plain(window):
        average = AVERAGE[len(window.kernel)]
        return average(x, window.kernel, window.strides, window.begin, count_include_pad=with_pads)
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    counted = padded(counted, window.begin, window.end, float(with_pads))
    none = (0,) * len(window.kernel)
    return _window_sum(x, window) / _window_sum(counted, replace(window, begin=none, end=none))


def _is_plain(window: WindowAttributes) -> bool:
    """Whether torch has this pool; it pads by half a kernel at most."""
    fits = all(2 * pad <= size for pad, size in zip(window.begin, window.kernel, strict=True))
    return window.is_symmetric and fits and set(window.dilations) == {1}


def _window_sum(x: Tensor, window: WindowAttributes) -> Tensor:
    end = [a + b for a, b in zip(window.end, window.beyond, strict=True)]
    planes = padded(x, window.begin, end).flatten(0, 1).unsqueeze(1)
    ones = torch.ones((1, 1, *window.kernel), dtype=x.dtype, device=x.device)
    sums = CONVOLUTION[len(window.kernel)](planes, ones, None, window.strides, 0, window.dilations)
    return sums.reshape(*x.shape[:2], *sums.shape[2:])


def _lp_pool(node: ir.Node, x: Tensor) -> Tensor:
    power = integer(node, "p", 2)
    window = window_of(node, x.shape[2:], integers(node, "kernel_shape", []))
    return _window_sum(x.abs() ** power, window) ** (1 / power)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def _global_average_pool(_node: ir.Node, x: Tensor) -> Tensor:
    return x.mean(_spatial(x), keepdim=True)


def _global_max_pool(_node: ir.Node, x: Tensor) -> Tensor:
    return x.amax(_spatial(x), keepdim=True)


def _global_lp_pool(node: ir.Node, x: Tensor) -> Tensor:
    power = integer(node, "p", 2)
    return (x.abs() ** power).sum(_spatial(x), keepdim=True) ** (1 / power)


def _without_indices(node: ir.Node) -> str | None:
    return "its second output, the indices, is not computed" if len(node.outputs) > 1 else None


OPERATORS: Operators = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global_max_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
CHECKS: dict[str, Check] = {"MaxPool": _without_indices}
