"""Faults of lowering: the quantized graph is not what the plan asks for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from planting import ASKED, DIFFER, TUNED, Changed, Fault, always, given

from ptqc.formats import UINT8, QuantParams
from ptqc.formats.float8 import Float8Rounding
from ptqc.ir.lowered import Lowered
from ptqc.passes.allocate import lower
from ptqc.passes.base import Result
from ptqc.passes.quantize.phases import PlanWithParameters


def zero_point_moved(right: Any) -> Any:
    return lambda self, params: right(self, dataclasses.replace(params, zero_point=params.zero_point ^ 1))


def params_of_another(right: Any) -> Any:
    """The sum gets the scale and zero point of its first operand."""

    def quantize(self: Any, value: ir.Value, tensor: str, insert: Any) -> None:
        kept = self.params
        if tensor == "q":
            self.params = {**kept, "q": kept["e"]}
        right(self, value, tensor, insert)
        self.params = kept

    return quantize


def one_more_quantized(right: Any) -> Any:
    """An activation that the plan leaves in float."""

    def apply(self: Any, value: PlanWithParameters) -> Result[Lowered]:
        more = {value.plan.sites[0].name: QuantParams(UINT8, 0.05, 128)}
        plan = dataclasses.replace(value.plan, activations=more)
        result: Result[Lowered] = right(self, dataclasses.replace(value, plan=plan))
        return result

    return apply


def in_the_graph(change: Callable[[ir.Node], None], *op_types: str) -> Changed:
    """Something done to nodes of the lowered graph."""

    def changed(result: Result[Lowered]) -> Result[Lowered]:
        nodes = [node for node in result.output.model.graph if node.op_type in op_types]
        assert nodes
        for node in nodes:
            change(node)
        return result

    return given(changed)


def scales_exchanged(node: ir.Node) -> None:
    """What the two operands of a sum are dequantized with."""
    first, second = (value.producer() for value in node.inputs if value is not None)
    assert first is not None
    assert second is not None
    kept = first.inputs[1:3]
    for index in (1, 2):
        first.replace_input_with(index, second.inputs[index])
        second.replace_input_with(index, kept[index - 1])


def setting(name: str, value: Any) -> Callable[[ir.Node], None]:
    def change(node: ir.Node) -> None:
        node.attributes[name] = ir.convenience.convert_attribute(name, value)

    return change


def not_transposed(node: ir.Node) -> None:
    node.attributes["perm"] = ir.AttrInt64s("perm", range(len(node.attributes["perm"].as_ints())))


def operands_exchanged(node: ir.Node) -> None:
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)


def zero_for_zero_point(right: Any) -> Any:
    return lambda self, node, params: right(self, node, dataclasses.replace(params, zero_point=0))


def twice_the_scale(right: Any) -> Any:
    return lambda self, node, params: right(self, node, dataclasses.replace(params, scale=2 * params.scale))


def half_the_bounds(bounds: Any) -> Any:
    return None if bounds is None else (bounds[0], bounds[1] / 2)


def another_scale(right: Any) -> Any:
    return lambda self, value, constant: right(dataclasses.replace(self, scale=1.3 * self.scale), value, constant)


def scales_reversed(right: Any) -> Any:
    return lambda self, codes, scale, *others: right(self, codes, scale[::-1], *others)


LOWERING: dict[str, Fault] = {
    "zero points off by one": Fault(lower._Builder, "_parameters", zero_point_moved, "image", ASKED),
    "scale of the bias stale": Fault(
        lower, "accumulator_scale", given(lambda scale: scale * np.float32(1.05)), "image", DIFFER
    ),
    "scale of another tensor": Fault(lower._Builder, "_quantize", params_of_another, "image", DIFFER),
    "activation quantized that stays float": Fault(
        lower.Lower, "apply", one_more_quantized, "words", "but not in both"
    ),
    "scales of a sum exchanged": Fault(lower.Lower, "apply", in_the_graph(scales_exchanged, "Add"), "image", ASKED),
    "pads counted in a mean": Fault(
        lower.Lower, "apply", in_the_graph(setting("count_include_pad", 1), "AveragePool"), "image", ASKED
    ),
    "padded with code zero": Fault(lower._Builder, "_on_codes", zero_for_zero_point, "image", ASKED),
    "bound of an absorbed Clip wrong": Fault(lower, "clip_bounds", given(half_the_bounds), "image", ASKED),
    "bound of a Clip on codes wrong": Fault(lower._Builder, "_on_codes", twice_the_scale, "image", ASKED),
    "transposition of codes forgotten": Fault(
        lower.Lower, "apply", in_the_graph(not_transposed, "Transpose"), "image", ASKED
    ),
    "operands of a concatenation exchanged": Fault(
        lower.Lower, "apply", in_the_graph(operands_exchanged, "Concat"), "image", ASKED
    ),
    "softmax along the wrong axis": Fault(
        lower.Lower, "apply", in_the_graph(setting("axis", 1), "Softmax"), "words", ASKED
    ),
    "scale of FP8 activations wrong": Fault(Float8Rounding, "nodes", another_scale, "float8", ASKED),
    "scales of FP8 weights reversed": Fault(lower._Builder, "_dequantized", scales_reversed, "float8", TUNED),
    "biases behind FP8 in other steps": Fault(
        lower, "_in_steps", given(lambda bias: bias * np.float32(1.05)), "float8", ASKED
    ),
    "rounding to FP8 forgotten": Fault(lower._Builder, "_cast", always(None), "float8", "but not in both"),
    "operands of a difference exchanged": Fault(
        lower.Lower, "apply", in_the_graph(operands_exchanged, "Sub"), "words", ASKED
    ),
}
