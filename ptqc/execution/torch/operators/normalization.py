"""Normalizations, in inference."""

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from ptqc.execution.torch.operators.signature import Check, Operators
from ptqc.ir.nodes import integer, integers, number


def _batch_normalization(
    node: ir.Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    return functional.batch_norm(x, mean, variance, scale, bias, eps=number(node, "epsilon", 1e-5))


def _instance_normalization(node: ir.Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=number(node, "epsilon", 1e-5))


def _group_normalization(node: ir.Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Before opset 21 scale and bias have one entry per group, since then one per channel."""
    repeats = x.shape[1] // scale.shape[0]
    scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return functional.group_norm(x, integer(node, "num_groups", 1), scale, bias, number(node, "epsilon", 1e-5))


def _layer_normalization(node: ir.Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = integer(node, "axis", -1)
    axes = list(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + number(node, "epsilon", 1e-5))
    y = centred * inverse * scale
    return y if bias is None else y + bias, mean, inverse


def _rms_normalization(node: ir.Node, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(integer(node, "axis", -1) % x.ndim, x.ndim))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + number(node, "epsilon", 1e-5)) * scale


def _lp_normalization(node: ir.Node, x: Tensor) -> Tensor:
    norm = x.norm(integer(node, "p", 2), integer(node, "axis", -1), keepdim=True)
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


def _mean_variance_normalization(node: ir.Node, x: Tensor) -> Tensor:
    axes = integers(node, "axes", [0, 2, 3])
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + 1e-9)


def _lrn(node: ir.Node, x: Tensor) -> Tensor:
    """torch's own centres an even number of channels on the other side."""
    size = integer(node, "size", 1)
    around = [0] * 2 * (x.ndim - 2) + [(size - 1) // 2, size // 2]
    squares = functional.pad(x * x, around).unfold(1, size, 1).sum(-1)
    scaled = number(node, "bias", 1.0) + number(node, "alpha", 1e-4) / size * squares
    return x / scaled ** number(node, "beta", 0.75)


def _in_inference(node: ir.Node) -> str | None:
    return "it is in training mode" if integer(node, "training_mode", 0) else None


OPERATORS: Operators = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LRN": _lrn,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "RMSNormalization": _rms_normalization,
}
CHECKS: dict[str, Check] = {"BatchNormalization": _in_inference}
