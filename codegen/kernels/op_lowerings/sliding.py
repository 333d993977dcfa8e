"""Operators that slide a window: their attributes as a window over a padded plane."""

from collections.abc import Sequence

import onnx_ir as ir

from ptqc.codegen.kernels.program_builder import ProgramBuilder
from ptqc.codegen.program.program import UnsupportedOp, Window
from ptqc.ir.nodes import integers, text
from ptqc.runtime.lengths import varies

Pair = tuple[int, int]


def slide(
    builder: ProgramBuilder, node: ir.Node, name: str, kernel: Sequence[int], border: float
) -> tuple[str, Window]:
    """The value `name` as a plane with the node's padding, and how a window of this size moves over it."""
    builder.check_one_sample(node.inputs[0])
    if varies(builder.sizes(node.inputs[0])):
        raise UnsupportedOp("windows slide over planes of one size")
    rank = len(kernel)
    if rank not in (1, 2) or text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise UnsupportedOp("only windows over one or two axes with explicit padding have a kernel")
    pads = integers(node, "pads", [0] * (2 * rank))
    before, after = _pair(pads[:rank], 0), _pair(pads[rank:], 0)
    strides, dilations = (_pair(integers(node, key, [1] * rank), 1) for key in ("strides", "dilations"))
    size, output = (_pair(shape[1:], 1) for shape in (builder.layouts[name].shape, builder.shape(node.outputs[0])))
    extent = [(steps - 1) * stride for steps, stride in zip(output, strides, strict=True)]
    extent = [e + (k - 1) * d + 1 for e, k, d in zip(extent, _pair(kernel, 1), dilations, strict=True)]
    # A pool that rounds its size up reads beyond the declared border.
    after = _pair([max(a, e - s - b) for a, b, e, s in zip(after, before, extent, size, strict=True)], 0)
    source = builder.padded(name, (*before, *after), border)
    channels, rows, columns = builder.layouts[source].shape
    return source, Window(channels, (rows, columns), _pair(kernel, 1), strides, dilations)


def _pair(numbers: Sequence[int], filler: int) -> Pair:
    """Numbers of one or two spatial axes as those of a plane; a single axis is its columns."""
    first, second = (filler, *numbers)[-2:]
    return first, second
