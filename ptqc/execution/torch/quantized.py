"""A planned model in torch: activations rounded where the plan says so, with weights and biases from outside.

Rounding passes gradients on as if it were not there, inside the range (straight-through estimator: Bengio, Léonard,
Courville 2013, arXiv 1308.3432).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.graph import TorchGraph
from ptqc.execution.torch.types import tensor_of
from ptqc.formats import QuantParams, coded
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters


class _Rounding(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, low: int, high: int) -> Tensor:
        steps = torch.round(x / scale)
        clipped = steps.clamp(low, high)
        ctx.save_for_backward(steps == clipped)
        return clipped.mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None


def fake_quantize(x: Tensor, params: QuantParams) -> Tensor:
    """`ptqc.ir.integer_arithmetic.fake_quantize`, with gradients."""
    low, high = params.format.low - params.zero_point, params.format.high - params.zero_point
    return _Rounding.apply(x, params.scale, low, high)


class QuantizedGraph:
    """The float graph and its quantized twin, any piece of either.

    A layer's bias is one constant of its own, also where the model has none or shares it.
    """

    def __init__(self, model: ir.Model, plan: Plan) -> None:
        self.params = coded(plan.rounded)
        self.real = TorchGraph(model)
        owned, self._bias_of = _with_own_biases(model, plan)
        self._rounded = TorchGraph(owned)

    def run(
        self,
        feeds: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        biases: Mapping[str, Tensor],
        taps: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Values of the taps in the quantized graph; feeds are rounded too. weights: by name. biases: by layer."""
        replace = {**weights, **{self._bias_of[name]: bias for name, bias in biases.items()}}
        return self._rounded.run(feeds, taps, replace=replace, hook=self._round)

    def _round(self, name: str, value: Tensor) -> Tensor:
        params = self.params.get(name)
        return value if params is None else fake_quantize(value, params)


def tensors_of(tuned: QuantizedParameters) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and biases as `QuantizedGraph.run` takes them."""
    weights = {name: tensor_of(solution.weight) for name, solution in tuned.weights.items()}
    return weights, {name: tensor_of(bias) for name, bias in tuned.biases.items() if bias is not None}


def _with_own_biases(model: ir.Model, plan: Plan) -> tuple[ir.Model, dict[str, str]]:
    """A copy in which every layer that can have a bias has its own, zero at first; layer name -> name of that bias."""
    copy, names = model.clone(), {}
    layers = {layer.name: layer for layer in plan.layers if layer.takes_bias}
    taken = set(copy.graph.initializers)
    for node in copy.graph:
        layer = layers.get(str(node.outputs[0].name))
        if layer is None:
            continue
        name = f"{layer.name}/own bias"
        while name in taken:
            name += "/"
        tensor = ir.tensor([0.0] * layer.channels, dtype=ir.DataType.FLOAT, name=name)
        value = ir.Value(
            name=name, const_value=tensor, shape=ir.Shape([layer.channels]), type=ir.TensorType(tensor.dtype)
        )
        copy.graph.register_initializer(value)
        node.resize_inputs(3)
        node.replace_input_with(2, value)
        names[layer.name] = name
    return copy, names
