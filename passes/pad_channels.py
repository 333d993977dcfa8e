"""Zero channels appended by a Pad written as a 1x1 convolution by zeros and ones, which has an integer kernel.

Residual networks widen a shortcut without parameters in this way (He et al. 2015, option A). The weights are exact in
any format that holds 0 and 1, and a zero weight gives an exact zero.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, RewriteContext
from ptqc.passes.fold_pad import zero_pads
from ptqc.passes.graph_tools import add_constant, nodes_of, replace_node, static

# Beyond this many weights the convolution costs more than a Pad in float.
MAX_WEIGHTS = 1 << 16


@dataclass(frozen=True)
class PadChannels:
    """Replace Pads of the channel axis (and of no other) by a convolution that copies the channels."""

    name: ClassVar[str] = "pad-channels"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, model: ir.Model, context: RewriteContext) -> list[Note]:  # noqa: ARG002
        """One note for each Pad of channels."""
        notes = []
        for node in nodes_of(model, "Pad"):
            pads = zero_pads(node)
            if isinstance(pads, str) or not _only_channels(pads):
                continue
            subject = node.outputs[0].name or ""
            reason = _replace(model, node, pads)
            if reason is None:
                notes.append(Note(self.name, subject, "Pad of channels is now a 1x1 Conv by zeros and ones"))
            else:
                notes.append(Note(self.name, subject, f"stays: {reason}", Level.SKIPPED))
        return notes


def _only_channels(pads: list[int]) -> bool:
    axis_count = len(pads) // 2
    others = [amount for index, amount in enumerate(pads) if index % axis_count != 1]
    return axis_count in (3, 4, 5) and not any(others) and any(pads)


def _replace(model: ir.Model, node: ir.Node, pads: list[int]) -> str | None:
    """Put the convolution in the Pad's place; the reason where it stays."""
    source = node.inputs[0]
    channels = static(source, slice(1, 2))
    if source is None or channels is None or source.dtype != ir.DataType.FLOAT:
        return "its channels are not known, or not float32"
    axis_count = len(pads) // 2
    before, after = pads[1], pads[1 + axis_count]
    weight = np.eye(before + channels[0] + after, channels[0], k=-before, dtype=np.float32)
    if weight.size > MAX_WEIGHTS:
        return f"the convolution would have {weight.size} weights, at most {MAX_WEIGHTS} are worth it"
    ones = [1] * (axis_count - 2)
    value = add_constant(model, weight.reshape(*weight.shape, *ones), f"{node.outputs[0].name}_weight")
    replace_node(node, "Conv", [source, value], {"kernel_shape": ones})
    return None
