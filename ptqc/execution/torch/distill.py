"""Inputs improved until batch normalizations see the statistics that they saw in training.

ZeroQ (Cai et al., CVPR 2020, eq. 3-4): minimize over the input x the distance between the mean and standard deviation
of every batch normalization's input and those that the layer stored. Here a layer's squared distance is relative to its
variance, so that every layer weighs the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.graph import TorchGraph
from ptqc.ir.nodes import required

RATE = 0.05  # of Adam, in standard deviations of the input; ZeroQ's 0.5 suits its start from white noise
EPSILON = 1e-6  # of variances


@dataclass(frozen=True)
class Distilled:
    """Improved inputs, and the mean relative error of the statistics before and after."""

    batch: np.ndarray
    before: float
    after: float


@dataclass(frozen=True)
class _Statistics:
    """What one batch normalization stored, and the name of its input."""

    tap: str
    mean: Tensor
    std: Tensor

    def error(self, x: Tensor) -> Tensor:
        """Squared distance of the input's statistics to the stored ones, relative to the variance."""
        axes = [axis for axis in range(x.ndim) if axis != 1]
        mean, std = x.mean(axes), (x.var(axes, correction=0) + EPSILON).sqrt()
        distance = (mean - self.mean).square().sum() + (std - self.std).square().sum()
        return distance / self.std.square().sum()


def distill(model: ir.Model, batch: np.ndarray, steps: int, done: Callable[[], None] = lambda: None) -> Distilled:
    """Inputs near `batch` on which the model's batch normalizations see what they stored.

    model: of one input and with batch normalizations in it. Values stay within the batch's extremes, per channel.
    done: called after each step. Raises Unsupported for an operator without gradient.
    The same for the same batch, up to the rounding of torch's threads.
    """
    graph = TorchGraph(model)
    stored = _stored(model, graph)
    start = torch.from_numpy(np.asarray(batch, np.float32).copy())
    low, high = _extreme(start, torch.amin), _extreme(start, torch.amax)
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], RATE * float(start.std()))
    errors, result = [float("inf")], start
    for step in range(steps + 1):
        error = _error(graph, stored, x)
        if error.item() < min(errors):
            result = x.detach().clone()
        errors.append(error.item())
        if step < steps:
            _descend(optimizer, error, x, low, high)
            done()
    return Distilled(result.numpy(), errors[1], min(errors))


def _descend(optimizer: torch.optim.Optimizer, error: Tensor, x: Tensor, low: Tensor, high: Tensor) -> None:
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    with torch.no_grad():
        x.copy_(torch.maximum(torch.minimum(x, high), low))


def _stored(model: ir.Model, graph: TorchGraph) -> list[_Statistics]:
    """The statistics of every batch normalization with constant ones."""
    result = []
    for node in model.graph:
        names = [str(value.name) for value in node.inputs if value is not None]
        if node.op_type == "BatchNormalization" and names[3] in graph.constants and names[4] in graph.constants:
            mean, variance = graph.constants[names[3]], graph.constants[names[4]]
            result.append(_Statistics(str(required(node.inputs[0]).name), mean, (variance + EPSILON).sqrt()))
    return result


def _error(graph: TorchGraph, stored: Sequence[_Statistics], x: Tensor) -> Tensor:
    values = graph.run({graph.inputs[0]: x}, [one.tap for one in stored])
    return torch.stack([one.error(values[one.tap]) for one in stored]).mean()


def _extreme(x: Tensor, of: Callable[..., Tensor]) -> Tensor:
    return of(x, (0, *range(2, x.ndim)), keepdim=True)
