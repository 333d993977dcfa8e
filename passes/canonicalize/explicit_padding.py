"""auto_pad of convolutions and pools written out as pads, where they do not depend on the input's size or it is known.

SAME: the output has ceil(size / stride) positions; the padding in all is what the last window lacks, and the odd one
goes to the end (SAME_UPPER) or to the beginning (SAME_LOWER).
"""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ptqc.ir.nodes import integers, nodes_of, rank, static, text
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class ExplicitPadding:
    """Replace auto_pad by pads."""

    name: ClassVar[str] = "explicit-padding"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each node with auto_pad."""
        model = probed.model
        notes, idle = [], False
        for node in nodes_of(model, "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"):
            mode = text(node, "auto_pad", "NOTSET")
            if mode == "NOTSET":
                idle = node.attributes.pop("auto_pad", None) is not None or idle
                continue
            pads = _pads(node, mode)
            subject = node.outputs[0].name or ""
            if pads is None:
                message = f"auto_pad {mode} stays: the spatial size is not known or the padding is ambiguous"
                notes.append(Note(self.name, subject, message, Level.SKIPPED))
                continue
            del node.attributes["auto_pad"]
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)
            notes.append(Note(self.name, subject, f"auto_pad {mode} written as pads {pads}"))
        return probed.rewritten(notes, unsaid=idle)


def _kernel(node: ir.Node) -> list[int] | None:
    kernel = integers(node, "kernel_shape", ())
    if kernel:
        return kernel
    weight = static(node.inputs[1], slice(2, None)) if len(node.inputs) > 1 else None
    return None if weight is None else list(weight)


def _pads(node: ir.Node, mode: str) -> list[int] | None:
    """Begins, then ends, of every spatial axis; None where they cannot be told."""
    kernel = _kernel(node)
    if kernel is None or "output_shape" in node.attributes:
        return None
    spatial = len(kernel)
    if mode == "VALID":
        return [0] * (2 * spatial)
    strides = integers(node, "strides", [1] * spatial)
    dilations = integers(node, "dilations", [1] * spatial)
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    if node.op_type == "ConvTranspose":
        return _transposed(node, extents, strides)
    totals = _totals(node, extents, strides)
    if totals is None:
        return None
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return less + more if mode == "SAME_UPPER" else more + less


def _totals(node: ir.Node, extents: list[int], strides: list[int]) -> list[int] | None:
    if all(stride == 1 for stride in strides):
        return [extent - 1 for extent in extents]
    if rank(node.inputs[0]) != len(extents) + 2:
        return None
    sizes = static(node.inputs[0], slice(2, None))
    if sizes is None:
        return None
    steps = zip(sizes, extents, strides, strict=True)
    return [max((-(-size // stride) - 1) * stride + extent - size, 0) for size, extent, stride in steps]


def _transposed(node: ir.Node, extents: list[int], strides: list[int]) -> list[int] | None:
    # The side of an odd one differs between versions of the specification, so only even paddings are written out.
    extra = integers(node, "output_padding", [0] * len(extents))
    totals = [extent + more - stride for extent, more, stride in zip(extents, extra, strides, strict=True)]
    if any(total < 0 or total % 2 for total in totals):
        return None
    return [total // 2 for total in totals] * 2
