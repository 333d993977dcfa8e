"""Pads, scales and sizes of some axes written for all of them.

ONNX Runtime's layout changes take the lists of Pad and Resize for complete ones: with an integer kernel beside such a
node, the file does not load or fails when it runs.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.ir.nodes import (
    add_constant,
    constant,
    input_of,
    insert_before,
    nodes_of,
    rank,
    remove_dead,
    required,
    static,
    text,
)
from ptqc.notes import Level, Note
from ptqc.passes.base import Effect, Probed, Result

ROI, SCALES, SIZES = 1, 2, 3  # inputs of Resize


@dataclass(frozen=True)
class ExplicitAxes:
    """Let Pad and Resize name every axis of their input."""

    name: ClassVar[str] = "explicit-axes"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """One note for each node that names some axes."""
        model = probed.model
        notes = []
        for node in nodes_of(model, "Pad", "Resize"):
            if _names_axes(node):
                reason = _complete_pad(model, node) if node.op_type == "Pad" else _complete_resize(model, node)
                level = Level.INFO if reason is None else Level.SKIPPED
                notes.append(Note(self.name, node.outputs[0].name or "", reason or "written for all axes", level))
        return probed.rewritten(notes, unsaid=remove_dead(model))


def _names_axes(node: ir.Node) -> bool:
    return input_of(node, 3) is not None if node.op_type == "Pad" else "axes" in node.attributes


def _complete_pad(model: ir.Model, node: ir.Node) -> str | None:
    """Write the pads of all axes; the reason where that cannot be done."""
    axis_count, axes = rank(node.inputs[0]), constant(node.inputs[3])
    if axis_count is None or axes is None:
        return "stays: its axes are not constant, or the rank of its input is not known"
    ends = np.concatenate([axes % axis_count, axes % axis_count + axis_count])
    _complete(model, node, 1, np.zeros(2 * axis_count, np.int64), ends)
    node.resize_inputs(3)
    return None


def _complete_resize(model: ir.Model, node: ir.Node) -> str | None:
    """Write region, scales and sizes of all axes; the reason where that cannot be done."""
    axis_count = rank(node.inputs[0])
    if axis_count is None:
        return "stays: the rank of its input is not known"
    axes = np.array(node.attributes["axes"].as_ints()) % axis_count
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    if _is_present(node, SIZES) and policy != "stretch" and len(axes) < axis_count:
        scale = _common_scale(node, axes, policy)
        if scale is None:
            return f"stays: {policy} depends on the named axes alone"
        node.replace_input_with(SCALES, add_constant(model, np.full(len(axes), scale), f"{node.outputs[0].name}_scale"))
        node.resize_inputs(SIZES)
        del node.attributes["keep_aspect_ratio_policy"]
    if _is_present(node, ROI):
        whole = np.repeat(np.array([0, 1], np.float32), axis_count)  # begins, then ends
        _complete(model, node, ROI, whole, np.concatenate([axes, axes + axis_count]))
    if _is_present(node, SCALES):
        _complete(model, node, SCALES, np.ones(axis_count, np.float32), axes)
    if _is_present(node, SIZES):
        _complete_sizes(model, node, axes)
    del node.attributes["axes"]
    return None


def _common_scale(node: ir.Node, axes: np.ndarray, policy: str) -> np.float32 | None:
    """The scale that a policy gives all axes, if it is known and gives the same sizes: scales are rounded down."""
    shape, after = required(node.inputs[0]).shape or (), constant(node.inputs[SIZES])
    before = [size for axis in axes if isinstance(size := shape[axis], int)]
    if after is None or len(before) < len(axes):
        return None
    sizes = np.array(before, np.float32)
    scale = (np.min if policy == "not_larger" else np.max)(np.float32(after) / sizes)
    return scale if np.array_equal(np.floor(sizes * scale), np.floor(sizes * scale + np.float32(0.5))) else None


def _is_present(node: ir.Node, index: int) -> bool:
    """Whether the node has this input, and not an empty tensor in its place."""
    value = input_of(node, index)
    return value is not None and static(value) != (0,)


def _complete_sizes(model: ir.Model, node: ir.Node, axes: np.ndarray) -> None:
    """Let the other axes keep their sizes."""
    x, axis_count = required(node.inputs[0]), rank(node.inputs[0]) or 0
    sizes, first, last = static(x), int(axes[0]), int(axes[-1]) + 1
    if sizes is not None:
        _complete(model, node, SIZES, np.array(sizes), axes)
    elif list(axes) == list(range(first, last)):  # shape inference follows Concat, not ScatterElements
        sides = [(begin, end) for begin, end in ((0, first), (last, axis_count)) if begin < end]
        parts = [insert_before(node, "Shape", [x], {"start": begin, "end": end}) for begin, end in sides]
        parts.insert(1 if first else 0, required(node.inputs[SIZES]))
        node.replace_input_with(SIZES, insert_before(node, "Concat", parts, {"axis": 0}))
    else:
        _complete(model, node, SIZES, insert_before(node, "Shape", [x]), axes)


def _complete(model: ir.Model, node: ir.Node, index: int, others: np.ndarray | ir.Value, places: np.ndarray) -> None:
    """Put the elements of an input in their places of a list for all axes. others: what the others have there."""
    value, hint = node.inputs[index], f"{node.outputs[0].name}_all_axes"
    stated = constant(value)
    if stated is not None and isinstance(others, np.ndarray):
        complete = others.astype(stated.dtype)
        complete[places] = stated
        node.replace_input_with(index, add_constant(model, complete, hint))
        return
    base = add_constant(model, others, hint) if isinstance(others, np.ndarray) else others
    indices = add_constant(model, places.astype(np.int64), f"{hint}_places")
    node.replace_input_with(index, insert_before(node, "ScatterElements", [base, indices, value], {"axis": 0}))
