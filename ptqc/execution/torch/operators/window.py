"""The sliding window of a convolution or pool: kernel, strides, dilations, and pads as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from torch import Tensor
from torch.nn import functional

from ptqc.ir.nodes import integer, integers, text

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class WindowAttributes:
    """One number per spatial axis in each field.

    beyond: further pads at the end, which a window rounded up (`ceil_mode`) reaches into.
    """

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    begin: Sizes
    end: Sizes
    beyond: Sizes

    @property
    def is_symmetric(self) -> bool:
        """Whether one number per axis says how it is padded."""
        return self.begin == self.end and not any(self.beyond)


def window_of(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> WindowAttributes:
    """The window that a node slides over an input of the given spatial sizes."""
    ones = [1] * len(kernel)
    strides, dilations = integers(node, "strides", ones), integers(node, "dilations", ones)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    begin, end = _pads(node, sizes, strides, reach)
    beyond = [0] * len(kernel)
    if integer(node, "ceil_mode", 0):
        beyond = [_beyond(*axis) for axis in zip(sizes, strides, reach, begin, end, strict=True)]
    return WindowAttributes(*map(tuple, (kernel, strides, dilations, begin, end, beyond)))


def _pads(
    node: ir.Node, sizes: Sequence[int], strides: Sequence[int], reach: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    rank = len(sizes)
    mode = text(node, "auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = integers(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else [0] * 2 * rank
        return pads[:rank], pads[rank:]
    totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(sizes, strides, reach, strict=True)]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def _beyond(size: int, stride: int, reach: int, begin: int, end: int) -> int:
    steps = -(-(size + begin + end - reach) // stride)
    if steps * stride >= size + begin:  # a window that starts behind the data is left out
        steps -= 1
    return max(steps * stride + reach - size - begin - end, 0)


def padded(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> Tensor:
    """The last axes of x with more entries around (with fewer for negative numbers)."""
    if not any(begin) and not any(end):
        return x
    backwards = [n for pair in zip(reversed(begin), reversed(end), strict=True) for n in pair]
    return functional.pad(x, backwards, value=value)
