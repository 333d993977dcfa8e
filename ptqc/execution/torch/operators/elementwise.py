"""Arithmetic, comparisons and logic, with broadcasting."""

from collections.abc import Callable
from functools import reduce

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Operator, Operators, of_inputs
from ptqc.ir.nodes import integer, text

Functions = dict[str, Callable[..., Tensor]]


def _over_all(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    """An operator of any number of inputs."""
    return lambda _node, *inputs: reduce(function, inputs)


def _mean(_node: ir.Node, *inputs: Tensor) -> Tensor:
    return reduce(torch.add, inputs) / len(inputs)


def _div(_node: ir.Node, a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(node: ir.Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if integer(node, "fmod", 0) else torch.remainder(a, b)


def _pow(_node: ir.Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.pow(a, b).to(a.dtype)


def _is_inf(node: ir.Node, x: Tensor) -> Tensor:
    positive = torch.isposinf(x) & bool(integer(node, "detect_positive", 1))
    return positive | (torch.isneginf(x) & bool(integer(node, "detect_negative", 1)))


def _bit_shift(node: ir.Node, a: Tensor, b: Tensor) -> Tensor:
    return a << b if text(node, "direction", "") == "LEFT" else a >> b


UNARY: Functions = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}
BINARY: Functions = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
OPERATORS: Operators = {
    **{name: of_inputs(function) for name, function in (*UNARY.items(), *BINARY.items())},
    "BitShift": _bit_shift,
    "Div": _div,
    "IsInf": _is_inf,
    "Max": _over_all(torch.maximum),
    "Mean": _mean,
    "Min": _over_all(torch.minimum),
    "Mod": _mod,
    "Pow": _pow,
    "Sum": _over_all(torch.add),
    "Where": of_inputs(torch.where),
}
