"""What the recipes share: a training loop with a fixed schedule, and the export to ONNX."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import torch
from torch import nn

OPSET = 17

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fit(
    network: nn.Module, batches: Callable[[int], Batches], loss: Loss, epochs: int, steps: int, rate: float
) -> None:
    """Train in place with AdamW under a one-cycle schedule; `steps` is the number of batches of all epochs together."""
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.15)
    network.train()
    for epoch in range(epochs):
        losses = []
        for inputs, targets in batches(epoch):
            optimizer.zero_grad()
            error = loss(network(inputs), targets)
            error.backward()
            optimizer.step()
            schedule.step()
            losses.append(error.item())
        print(f"epoch {epoch + 1}/{epochs}: loss {sum(losses) / len(losses):.4f}", flush=True)


@dataclass(frozen=True)
class Export:
    """How a network becomes a file: example input, names, symbolic axes, and whether batch normalization is folded."""

    example: torch.Tensor
    input: str
    output: str
    axes: dict[int, str] = field(default_factory=lambda: {0: "N"})
    fold_normalization: bool = True

    def write(self, network: nn.Module, path: Path) -> None:
        """Write the network in inference mode and check the file."""
        # PRESERVE keeps batch normalization apart from its convolution; the network is in inference mode in both cases.
        mode = torch.onnx.TrainingMode.EVAL if self.fold_normalization else torch.onnx.TrainingMode.PRESERVE
        with warnings.catch_warnings():
            # The tracing exporter announces its retirement; its files are plain and keep module names.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(),
                (self.example,),
                str(path),
                input_names=[self.input],
                output_names=[self.output],
                dynamic_axes={self.input: self.axes, self.output: self.axes},
                opset_version=OPSET,
                training=mode,
                do_constant_folding=self.fold_normalization,
                dynamo=False,
            )
        model = onnx.load(path)
        self._declare_output_shape(model, network(self.example).shape)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)

    def _declare_output_shape(self, model: onnx.ModelProto, shape: torch.Size) -> None:
        # The exporter invents a symbolic name for every output axis whose size it cannot see through a Reshape.
        for axis, (dim, size) in enumerate(zip(model.graph.output[0].type.tensor_type.shape.dim, shape, strict=True)):
            if axis not in self.axes:
                dim.dim_value = size
