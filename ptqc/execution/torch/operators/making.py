"""Operators that make a tensor from a shape, a type or a few numbers."""

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Check, Operators, whole_numbers
from ptqc.execution.torch.types import DTYPES, tensor_of
from ptqc.ir.nodes import integer


def _cast(node: ir.Node, x: Tensor) -> Tensor:
    return x.to(DTYPES[ir.DataType(integer(node, "to", 0))])


def _cast_like(_node: ir.Node, x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


def _shape(node: ir.Node, x: Tensor) -> Tensor:
    end = node.attributes.get("end")
    part = slice(integer(node, "start", 0), None if end is None else end.as_int())
    return torch.tensor(x.shape[part], dtype=torch.int64)


def _size(_node: ir.Node, x: Tensor) -> Tensor:
    return torch.tensor(x.numel())


def _constant_of_shape(node: ir.Node, shape: Tensor) -> Tensor:
    value = node.attributes.get("value")
    entry = torch.zeros(1) if value is None else tensor_of(value.as_tensor().numpy())
    return entry.reshape(()).expand(whole_numbers(shape))


def _range(_node: ir.Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _eye_like(node: ir.Node, x: Tensor) -> Tensor:
    result = node.attributes.get("dtype")
    dtype = x.dtype if result is None else DTYPES[ir.DataType(result.as_int())]
    return torch.ones(x.shape).triu(k := integer(node, "k", 0)).tril(k).to(dtype)


def _dropout(node: ir.Node, x: Tensor, *_ratio_and_mode: Tensor | None) -> tuple[Tensor, ...]:
    return (x, torch.ones_like(x, dtype=torch.bool)) if len(node.outputs) > 1 else (x,)


def _known_type(node: ir.Node) -> str | None:
    result = node.attributes.get("to") or node.attributes.get("dtype")
    if result is None or ir.DataType(result.as_int()) in DTYPES:
        return None
    return f"torch has no tensors of {ir.DataType(result.as_int())}"


def _in_inference(node: ir.Node) -> str | None:
    return "it may be in training mode" if len(node.inputs) > 2 and node.inputs[2] is not None else None


OPERATORS: Operators = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
CHECKS: dict[str, Check] = {"Cast": _known_type, "Dropout": _in_inference, "EyeLike": _known_type}
