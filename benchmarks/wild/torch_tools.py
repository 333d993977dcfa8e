"""Training and exporting in PyTorch."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from common import Place
from torch import Tensor, nn

BATCH = 32
LEARNED = 0.6  # the least accuracy; chance is a sixth
CALIBRATION = 256  # samples


def convolution(inside: int, outside: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch normalization."""
    layer = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outside))


def seeded(seed: int = 0) -> torch.Generator:
    """Seed everything that PyTorch draws."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def train(
    model: nn.Module, data: Sequence[Tensor], loss: Callable[..., Tensor], steps: int, rate: float = 2e-3
) -> nn.Module:
    """AdamW with one cycle of the learning rate; loss(model, *batch). Returns the model ready to be used."""
    draw = seeded(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
    model.train()
    for step in range(steps):
        chosen = torch.randint(len(data[0]), (BATCH,), generator=draw)
        batch_loss = loss(model, *(tensor[chosen] for tensor in data))
        optimizer.zero_grad()
        batch_loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        cycle.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {batch_loss.item():.4f}", flush=True)
    return model.eval()


def classified(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of a classifier."""
    return nn.functional.cross_entropy(model(inputs), labels)


def check(model: nn.Module, inputs: Any, labels: Any) -> None:
    """Print what share a classifier gets right; a network that has learned next to nothing is no test of anything."""
    with torch.no_grad():
        share = (model(torch.as_tensor(inputs)).argmax(1) == torch.as_tensor(labels)).float().mean().item()
    print(f"accuracy {share:.3f}", flush=True)
    assert share >= LEARNED, share


def by_torchscript(
    place: Place,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opset: int,
    free: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Export with the TorchScript exporter; free: names of free axes by input or output."""
    axes = free or {name: {0: "batch"} for name in [*inputs, *outputs]}
    _export(place, model, inputs, outputs, opset, dynamo=False, dynamic_axes=axes)


def by_dynamo(
    place: Place,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opset: int,
    free: Sequence[Mapping[int, str]] | None = None,
) -> None:
    """Export with the exporter built on torch.export, which keeps weights in a file beside the model by default."""
    shapes = free or [{0: "batch"}] * len(inputs)
    dynamic = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in shapes)
    _export(place, model, inputs, outputs, opset, dynamo=True, dynamic_shapes=dynamic)


def _export(
    place: Place,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    opset: int,
    **settings: Any,
) -> None:
    names = {"input_names": list(inputs), "output_names": list(outputs), "opset_version": opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), tuple(inputs.values()), str(place.model), **names, **settings)


def tensors(*arrays: np.ndarray) -> list[Tensor]:
    """Arrays as tensors."""
    return [torch.as_tensor(array) for array in arrays]
