"""Faults of the rewrites: the normal form is another function than the model."""

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from planting import Changed, Fault, always, given

from ptqc.ir.nodes import constant
from ptqc.passes.canonicalize import (
    conv_transpose,
    convert_opset,
    explicit_padding,
    flatten,
    float32_inside,
    fold_affine,
    fold_batch_norm,
    fold_constants,
    fold_gemm_factors,
    fold_pad,
    global_pool,
    linear_layers,
    remove_dead,
    tools,
)


def swapped_halves(values: Any) -> Any:
    """Begins and ends of pads exchanged; a reason why there are none is left alone."""
    return [*values[len(values) // 2 :], *values[: len(values) // 2]] if isinstance(values, list) else values


def variance_for_deviation(node: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    gain, shift, mean, variance = (np.asarray(constant(value), np.float64) for value in node.inputs[1:5])
    factor = gain / (variance + 0.2)
    return factor, shift - factor * mean


def padded_convolution(node: ir.Node, _affine: object) -> ir.Node:
    """Whatever reads the normalization, though its pads are then not normalized."""
    return node.outputs[0].consumers()[0]


def without_last_input(right: Any) -> Any:
    return lambda node, op_type, inputs, *more: right(node, op_type, [*inputs[:2], None], *more)


def to_axis(axis: int) -> Changed:
    return lambda right: lambda node, op_type, inputs, _attributes: right(node, op_type, inputs, {"axis": axis})


def unturned(right: Any) -> Any:
    """The kernel as it was: turned here once more."""

    def of(node: ir.Node) -> Any:
        site = right(node)
        return dataclasses.replace(site, weight=np.ascontiguousarray(site.weight[..., ::-1, ::-1]))

    return of


def first_axis_only(right: Any) -> Any:
    return lambda model, axes, hint: right(model, axes[:1], hint)


def lost_output(right: Any) -> Any:
    """Dead code removal that takes an output for dead."""

    def remove(model: ir.Model) -> bool:
        model.graph.outputs.pop()
        return bool(right(model))

    return remove


def lost_cast(_graph: ir.Graph, value: ir.Value) -> None:
    """The output is computed in float32 and given as it is."""
    value.dtype = ir.DataType.FLOAT


def float_input(_graph: ir.Graph, value: ir.Value) -> None:
    value.dtype = ir.DataType.FLOAT


REWRITES: dict[str, Fault] = {
    "epsilon dropped": Fault(fold_batch_norm, "number", always(0.0), "image", "fold-batch-norm changed output"),
    "variance for deviation": Fault(
        fold_batch_norm,
        "_affine",
        lambda _: variance_for_deviation,
        "image",
        "fold-batch-norm changed output",
    ),
    "normalization moved behind padding": Fault(
        fold_batch_norm, "_conv_after", lambda _: padded_convolution, "image", "fold-batch-norm changed output"
    ),
    "inputs of a layer not scaled": Fault(
        tools,
        "_scaled",
        lambda _: lambda _node, weight, _scale: weight,
        "image",
        "fold-batch-norm changed output",
    ),
    "transB ignored": Fault(tools, "integer", always(0), "image", "fold-batch-norm changed output"),
    "begins and ends of automatic pads swapped": Fault(
        explicit_padding, "_pads", given(swapped_halves), "image", "explicit-padding changed output"
    ),
    "asymmetric pads folded the wrong way": Fault(
        fold_pad, "zero_pads", given(swapped_halves), "image", "fold-pad changed output"
    ),
    "alpha and beta dropped": Fault(
        fold_gemm_factors.FoldGemmFactors,
        "_fold",
        lambda right: lambda self, model, node, name, index, _factor: right(self, model, node, name, index, 1.0),
        "image",
        "fold-gemm-factors changed output",
    ),
    "division taken for multiplication": Fault(
        fold_affine,
        "_affine",
        lambda right: lambda _type, operand: right("Mul", operand),
        "image",
        "fold-affine changed output",
    ),
    "kernel not turned": Fault(conv_transpose._Site, "of", unturned, "image", "conv-transpose changed output"),
    "bias of a product dropped": Fault(
        linear_layers, "replace_node", without_last_input, "image", "linear-layers changed output"
    ),
    "window taken for the whole image": Fault(
        global_pool, "_covers_input", always(True), "image", "global-pool (changed output|left a model)"
    ),
    "wrong axis flattened": Fault(
        flatten, "replace_node", to_axis(2), "image", "flatten (changed output|left a model)"
    ),
    "stale value folded": Fault(
        fold_constants,
        "_evaluate",
        given(lambda result: [array // 2 for array in result]),
        "image",
        "fold-constants changed output",
    ),
    "an axis lost on the way to opset 18": Fault(
        convert_opset, "add_constant", first_axis_only, "image", "convert-opset (changed output|left a model)"
    ),
    "live output removed": Fault(remove_dead, "remove_dead", lost_output, "image", "remove-dead changed the model's"),
    "cast at the output lost": Fault(float32_inside, "_cast_output", lambda _: lost_cast, "half", "float32-inside"),
    "type of the input changed": Fault(float32_inside, "_cast_input", lambda _: float_input, "half", "float32-inside"),
}
