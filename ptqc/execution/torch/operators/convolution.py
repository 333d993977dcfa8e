"""Convolutions over one to three axes."""

import onnx_ir as ir
from torch import Tensor
from torch.nn import functional

from ptqc.execution.torch.operators.signature import Operators
from ptqc.execution.torch.operators.window import padded, window_of
from ptqc.ir.nodes import integer, integers, text

FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _conv(node: ir.Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    window = window_of(node, x.shape[2:], weight.shape[2:])
    pads = window.begin
    if not window.is_symmetric:
        x, pads = padded(x, window.begin, window.end), (0,) * len(pads)
    convolve = FORWARD[len(pads)]
    return convolve(x, weight, bias, window.strides, pads, window.dilations, integer(node, "group", 1))


def _conv_transpose(node: ir.Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The whole result, then cropped by the pads; torch itself takes only symmetric pads."""
    rank = weight.ndim - 2
    ones = [1] * rank
    strides, dilations = integers(node, "strides", ones), integers(node, "dilations", ones)
    group = integer(node, "group", 1)
    y = TRANSPOSED[rank](x, weight, None, strides, 0, 0, group, dilations)
    begin, end = _crop(node, x.shape[2:], y.shape[2:], strides)
    y = padded(y, [-n for n in begin], [-n for n in end])
    return y if bias is None else y + bias.reshape(-1, *ones)


def _crop(node: ir.Node, sizes: list[int], whole: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """What to take off at the beginning and at the end of each axis."""
    rank = len(whole)
    extra = integers(node, "output_padding", [0] * rank)
    mode = text(node, "auto_pad", "NOTSET")
    same = mode in ("SAME_UPPER", "SAME_LOWER")
    default = [n * s for n, s in zip(sizes, strides, strict=True)] if same else []
    wanted = integers(node, "output_shape", default)[-rank:]
    if not wanted:
        pads = integers(node, "pads", [0] * 2 * rank)
        return pads[:rank], [end - more for end, more in zip(pads[rank:], extra, strict=True)]
    total = [w + more - n for w, more, n in zip(whole, extra, wanted, strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
    return begin, [n - more for n, more in zip(end, extra, strict=True)]


OPERATORS: Operators = {"Conv": _conv, "ConvTranspose": _conv_transpose}
