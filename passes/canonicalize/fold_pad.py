"""Pads of zeros on the spatial axes moved into the convolution or pool behind them; Pad has no integer kernel."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ptqc.ir.nodes import bypass, constant, input_of, integer, integers, nodes_of, producer, rank, remove_dead, text
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True)
class FoldPad:
    """Fold constant zero padding into each Conv, AveragePool or MaxPool that reads it, where that is exact."""

    name: ClassVar[str] = "fold-pad"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each Pad and user of it."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "Pad"):
            pads = zero_pads(node)
            subject = node.outputs[0].name or ""
            if isinstance(pads, str):
                notes.append(Note(self.name, subject, f"stays: {pads}", Level.SKIPPED))
            elif any(pads[:2]) or any(pads[len(pads) // 2 :][:2]):
                notes.append(Note(self.name, subject, "stays: it pads the batch or the channels", Level.SKIPPED))
            elif not any(pads) and node.inputs[0] is not None and bypass(node, node.inputs[0]):
                notes.append(Note(self.name, subject, "pads nothing: removed"))
            else:
                notes += [self._move(node, pads, user) for user in list(node.outputs[0].consumers())]
        return probed.rewritten(notes, unsaid=remove_dead(model))

    def _move(self, pad: ir.Node, pads: list[int], user: ir.Node) -> Note:
        subject = pad.outputs[0].name or ""
        reason = _problem(pad, pads, user)
        if reason is not None:
            return Note(self.name, subject, f"stays for its {user.op_type}: {reason}", Level.SKIPPED)
        own = integers(user, "pads", [0] * (len(pads) - 4))
        spatial = len(own) // 2
        more = pads[2 : 2 + spatial] + pads[4 + spatial :]
        user.attributes.pop("auto_pad", None)
        user.attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(own, more, strict=True)])
        if user.op_type == "AveragePool":  # the zeros of the Pad counted as input
            user.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
        user.replace_input_with(0, pad.inputs[0])
        return Note(self.name, subject, f"folded into its {user.op_type}")


def zero_pads(node: ir.Node) -> list[int] | str:
    """Begins, then ends, of every axis; a reason where the Pad is anything but added zeros."""
    pads, axis_count, value = constant(input_of(node, 1)), rank(node.inputs[0]), input_of(node, 2)
    if text(node, "mode", "constant") != "constant":
        return f"its mode is {text(node, 'mode', 'constant')}"
    if pads is None or axis_count is None:
        return "its pads are not constant, or the rank of its input is not known"
    fill = constant(value)
    if value is not None and (fill is None or fill.any()):
        return "it pads with another value than zero"
    spread = _on_all_axes(node, pads.tolist(), axis_count)
    if spread is None:
        return "its axes are not constant"
    if any(amount < 0 for amount in spread):
        return "it crops"
    return spread


def _on_all_axes(node: ir.Node, pads: list[int], axis_count: int) -> list[int] | None:
    if input_of(node, 3) is None:
        return pads
    axes = constant(input_of(node, 3))
    if axes is None:
        return None
    spread = [0] * (2 * axis_count)
    for position, axis in enumerate(axes.tolist()):
        spread[axis % axis_count] = pads[position]
        spread[axis % axis_count + axis_count] = pads[position + len(axes)]
    return spread


def _problem(pad: ir.Node, pads: list[int], user: ir.Node) -> str | None:
    """Why the padding cannot move into this user, None if it can."""
    if user.domain != "" or user.op_type not in ("Conv", "AveragePool", "MaxPool"):
        return "only convolutions and pools take over padding"
    if user.inputs[0] is not pad.outputs[0] or list(user.inputs).count(pad.outputs[0]) > 1:
        return "it pads a weight"
    if text(user, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return "the padding of its own depends on the size of its input"
    return None if user.op_type == "Conv" else _pool_problem(pad, pads, user)


def _pool_problem(pad: ir.Node, pads: list[int], user: ir.Node) -> str | None:
    kernel = integers(user, "kernel_shape", ())
    own = integers(user, "pads", [0] * (2 * len(kernel)))
    spatial = pads[2 : 2 + len(kernel)] + pads[4 + len(kernel) :]
    if integer(user, "ceil_mode", 0) or any(step != 1 for step in integers(user, "dilations", ())):
        return "with ceil_mode or dilations its last windows would differ"
    if any(amount + more >= size for amount, more, size in zip(own, spatial, kernel * 2, strict=True)):
        return "a pool's padding must be smaller than its kernel"
    if user.op_type == "AveragePool":
        exact = integer(user, "count_include_pad", 0) or not any(own)
        return None if exact else "it leaves its own padding out of the mean"
    # A pool pads with minus infinity. Zeros change no maximum of values that are at least zero.
    if any(own) or len(user.outputs) > 1 or not _nonnegative(pad.inputs[0]):
        return "its zeros may be the maximum of a window"
    return None


def _nonnegative(value: ir.Value | None) -> bool:
    if producer(value, "Relu", "Sigmoid", "HardSigmoid", "Softmax") is not None:
        return True
    clip = producer(value, "Clip")
    low = constant(input_of(clip, 1)) if clip is not None else None
    return low is not None and bool((low >= 0).all())
