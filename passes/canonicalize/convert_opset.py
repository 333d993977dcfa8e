"""Raise models below opset 18 to 18, the first with the bit operators that packed weights need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.errors import ModelError
from ptqc.ir.nodes import (
    add_constant,
    constant,
    infer_shapes,
    input_of,
    insert_before,
    integer,
    integers,
    number,
    rank,
    required,
    text,
)
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result

# What the versions of ONNX from 8 to 18 changed in the meaning of operators, and how a node is brought over.
#
# What only gained types, negative axes, or attributes whose default is the old behaviour needs nothing. Nodes inside
# subgraphs are brought over like all others. (onnx.version_converter leaves subgraphs as they are, and gives other
# values for Hardmax, for linear Upsample and for Resize.)

Adapter = Callable[[ir.Model, ir.Node], None]
NEWER = "export the model with opset 13 or higher"


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or node.op_type


def _refused(node: ir.Node, reason: str, remedy: str = NEWER) -> ModelError:
    return ModelError(f"the {node.op_type} node that gives {_name(node)!r} {reason}; {remedy}")


def _set_input(model: ir.Model, node: ir.Node, index: int, array: np.ndarray, hint: str) -> None:
    node.resize_inputs(max(index + 1, len(node.inputs)))
    node.replace_input_with(index, add_constant(model, array, f"{_name(node)}_{hint}"))


def _like(value: ir.Value | None, entry: float) -> np.ndarray:
    """A number of the value's type."""
    dtype = ir.DataType.FLOAT if value is None or value.dtype is None else value.dtype
    return np.array(entry, dtype.numpy())


def _integers_to_input(attribute: str, index: int = 1) -> Adapter:
    """The adapter of an operator that takes as an input what was an attribute: a list of integers."""

    def adapt(model: ir.Model, node: ir.Node) -> None:
        result = node.attributes.pop(attribute, None)
        if result is not None:
            _set_input(model, node, index, np.array(result.as_ints(), np.int64), attribute)

    return adapt


def _without_own_statistics(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    """A normalization of five outputs is in training mode."""
    if len(node.outputs) > 1:
        raise _refused(node, "is in training mode", "export the model in evaluation mode")


def _one_mean_per_channel(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    spatial = node.attributes.pop("spatial", None)
    if spatial is not None and not spatial.as_int():
        raise _refused(node, "has a mean for every element (spatial = 0)", "train the model with one for each channel")


def _batched_scan(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    raise _refused(node, "is of an opset below 9, which took batches of sequences")


def _slice(model: ir.Model, node: ir.Node) -> None:
    starts = integers(node, "starts", ())
    for index, (attribute, default) in enumerate((("starts", ()), ("ends", ()), ("axes", range(len(starts)))), 1):
        _set_input(model, node, index, np.array(integers(node, attribute, default), np.int64), attribute)
    node.attributes.clear()


def _top_k(model: ir.Model, node: ir.Node) -> None:
    _set_input(model, node, 1, np.array([integer(node, "k", 1)]), "k")
    del node.attributes["k"]


def _upsample(model: ir.Model, node: ir.Node) -> None:
    scales = node.attributes.pop("scales", None)
    if scales is not None:
        _set_input(model, node, 1, np.array(scales.as_floats(), np.float32), "scales")
    node.op_type = "Resize"
    if text(node, "mode", "nearest") != "nearest":
        node.attributes["mode"] = ir.AttrString("mode", "linear")  # opset 7 also called it bilinear
    _resize(model, node)


def _resize(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    """Opset 10 resized from the upper left corner; the nearest element was the next one where that made it smaller."""
    scales = constant(input_of(node, 1))
    is_smaller = scales is not None and bool((scales < 1).any())
    if scales is not None and is_smaller and (scales > 1).any() and text(node, "mode", "nearest") == "nearest":
        raise _refused(node, f"makes some axes larger and others smaller ({scales.tolist()})")
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if is_smaller else "floor")
    result = node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, None)
    node.replace_input_with(2, result)


def _clip(model: ir.Model, node: ir.Node) -> None:
    for index, bound in enumerate(("min", "max"), 1):
        result = node.attributes.pop(bound, None)
        if result is not None:
            _set_input(model, node, index, _like(node.inputs[0], result.as_float()), bound)


def _pad(model: ir.Model, node: ir.Node) -> None:
    value = number(node, "value", 0.0)
    node.attributes.pop("value", None)
    _integers_to_input("pads")(model, node)
    if value:
        _set_input(model, node, 2, _like(node.inputs[0], value), "value")


def _scatter(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    node.op_type = "ScatterElements"


def _dropout(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    node.attributes.pop("ratio", None)


def _over_all_axes_behind(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    """Below opset 13, Softmax and its kin ran over the axis and all behind it as over one."""
    x, axis = required(node.inputs[0]), integer(node, "axis", 1)
    sizes = () if x.shape is None else tuple(x.shape)[axis:]
    long = [place for place, size in enumerate(sizes) if size != 1]
    if sizes and len(long) <= 1:
        place = axis % (rank(x) or 1) + (long or [0])[0]
        node.attributes["axis"] = ir.AttrInt64("axis", place)
        return
    flat = insert_before(node, "Flatten", [x], {"axis": axis})
    shape = insert_before(node, "Shape", [x])
    result = insert_before(node, node.op_type, [flat], {"axis": -1})
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, result)
    node.replace_input_with(1, shape)


def _old_roi_default(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    # Opset 16 introduced the attribute, with a default that is not what opset 10 computed.
    name = "coordinate_transformation_mode"
    node.attributes[name] = ir.AttrString(name, "output_half_pixel")


def _count_outputs(model: ir.Model, node: ir.Node) -> None:  # noqa: ARG001
    if len(node.inputs) < 2 or node.inputs[1] is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")  # ReduceSum changed at 13

# By the version that brought the change, in order: a node may go through several.
CHANGES: Mapping[int, Mapping[str, Adapter]] = {
    9: {"BatchNormalization": _one_mean_per_channel, "Scan": _batched_scan},
    10: {"Slice": _slice, "TopK": _top_k, "Upsample": _upsample},
    11: {"Clip": _clip, "Pad": _pad, "Resize": _resize, "Scatter": _scatter},
    12: {"Dropout": _dropout},
    13: {
        **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), _integers_to_input("axes")),
        **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _over_all_axes_behind),
        "Split": _integers_to_input("split"),
    },
    14: {"BatchNormalization": _without_own_statistics},
    16: {"RoiAlign": _old_roi_default},
    18: {**{f"Reduce{kind}": _integers_to_input("axes") for kind in REDUCTIONS}, "Split": _count_outputs},
}


def adapters_of(op_type: str, version: int) -> Sequence[Adapter]:
    """What brings a node of an opset to the highest one of CHANGES."""
    return [result[op_type] for since, result in CHANGES.items() if since > version and op_type in result]


TARGET = 18
# IR version 8 is the one that opset 18 came with.
MIN_IR_VERSION = 8
# Adapters from versions below go by types and ranks.
SHAPED = 13


@dataclass(frozen=True)
class ConvertOpset:
    """Convert opset 7 to 17 into 18; higher ones stay."""

    name: ClassVar[str] = "convert-opset"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, probed: Probed) -> Result[Probed]:
        """Adapt the operators whose meaning changed, in subgraphs as well. Raises ModelError for what has no successor.

        That the outputs stay the same is checked on the probe feeds, as after every rewrite.
        """
        model = probed.model
        version = model.graph.opset_imports[""]
        if version >= TARGET:
            return probed.rewritten([])
        if version < SHAPED:
            infer_shapes(model)
        for node in list(model.graph.all_nodes()):
            for adapt in adapters_of(node.op_type, version) if not node.domain else ():
                adapt(model, node)
        model.graph.opset_imports[""] = TARGET
        model.ir_version = max(model.ir_version, MIN_IR_VERSION)
        compared = f"; the outputs on {len(probed.probe)} samples are the same" if probed.probe else ""
        return probed.rewritten([Note(self.name, "", f"opset {version} converted to {TARGET}{compared}")])
