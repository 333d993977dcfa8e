"""Activation functions."""

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from ptqc.execution.torch.operators.signature import Operators, of_inputs
from ptqc.ir.nodes import integer, number, text

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _leaky_relu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.leaky_relu(x, number(node, "alpha", 0.01))


def _prelu(_node: ir.Node, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _elu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.elu(x, number(node, "alpha", 1.0))


def _selu(node: ir.Node, x: Tensor) -> Tensor:
    return number(node, "gamma", SELU_GAMMA) * functional.elu(x, number(node, "alpha", SELU_ALPHA))


def _celu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.celu(x, number(node, "alpha", 1.0))


def _hard_sigmoid(node: ir.Node, x: Tensor) -> Tensor:
    return (number(node, "alpha", 0.2) * x + number(node, "beta", 0.5)).clamp(0, 1)


def _gelu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=text(node, "approximate", "none"))


def _swish(node: ir.Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(number(node, "alpha", 1.0) * x)


def _thresholded_relu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.threshold(x, number(node, "alpha", 1.0), 0.0)


def _shrink(node: ir.Node, x: Tensor) -> Tensor:
    bias, limit = number(node, "bias", 0.0), number(node, "lambd", 0.5)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x))).to(x.dtype)


def _clip(_node: ir.Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _softmax(node: ir.Node, x: Tensor) -> Tensor:
    return functional.softmax(x, integer(node, "axis", -1))


def _log_softmax(node: ir.Node, x: Tensor) -> Tensor:
    return functional.log_softmax(x, integer(node, "axis", -1))


def _hardmax(node: ir.Node, x: Tensor) -> Tensor:
    axis = integer(node, "axis", -1)
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1)


OPERATORS: Operators = {
    "Celu": _celu,
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": of_inputs(functional.hardswish),
    "Hardmax": _hardmax,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "Mish": of_inputs(functional.mish),
    "PRelu": _prelu,
    "Relu": of_inputs(torch.relu),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": of_inputs(torch.sigmoid),
    "Softmax": _softmax,
    "Softplus": of_inputs(functional.softplus),
    "Softsign": of_inputs(functional.softsign),
    "Swish": _swish,
    "Tanh": of_inputs(torch.tanh),
    "ThresholdedRelu": _thresholded_relu,
}
