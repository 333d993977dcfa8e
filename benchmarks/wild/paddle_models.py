"""PaddlePaddle by way of paddle2onnx."""

import numpy as np
import paddle
import paddle2onnx
import pictures
import series
from common import Data, Place, split
from paddle import nn
from paddle.static import InputSpec

BATCH = 64


def trained(
    model: nn.Layer, inputs: list[np.ndarray], wanted: np.ndarray, loss: nn.Layer, steps: int, rate: float
) -> None:
    """Adam on random batches."""
    optimizer = paddle.optimizer.Adam(rate, parameters=model.parameters())
    rng = np.random.default_rng(0)
    model.train()
    for step in range(steps):
        chosen = rng.integers(0, len(wanted), BATCH)
        batch_loss = loss(model(*(paddle.to_tensor(part[chosen]) for part in inputs)), paddle.to_tensor(wanted[chosen]))
        batch_loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {float(batch_loss):.4f}", flush=True)
    model.eval()


def convert(place: Place, model: nn.Layer, specification: list[InputSpec], opset: int) -> None:
    """Save the model as PaddlePaddle does, and convert that."""
    prefix = str(place.folder / "paddle")
    paddle.jit.save(model, prefix, specification)
    files = next(f"{prefix}.{end}" for end in ("json", "pdmodel") if (place.folder / f"paddle.{end}").exists())
    # Its default, Polygraphy, installs packages while it runs.
    tool = {"optimize_tool": "onnxoptimizer"}
    paddle2onnx.export(files, f"{prefix}.pdiparams", str(place.model), opset_version=opset, **tool)


def digits_mobilenet_v3(place: Place) -> Data:
    paddle.seed(0)
    x, y = pictures.digits(32)
    model = paddle.vision.models.MobileNetV3Small(scale=0.35, num_classes=10)
    model.conv = nn.Sequential(nn.Conv2D(1, 3, 1), model.conv)
    trained(model, [x[:1200]], y[:1200], nn.CrossEntropyLoss(), 200, 3e-3)
    convert(place, model, [InputSpec([-1, 1, 32, 32], "float32", "image")], 11)
    return split({"image": x}, 256, 597)


class WideAndDeep(nn.Layer):
    """Cheng et al. 2016: a linear part and embeddings with a network, in: (N, 8) of category numbers."""

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.wide, self.embedding = nn.Embedding(categories, 1), nn.Embedding(categories, 16)
        self.deep = nn.Sequential(*(nn.Linear(8 * 16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), nn.Linear(64, 1))

    def forward(self, chosen: paddle.Tensor) -> paddle.Tensor:
        deep = self.deep(paddle.flatten(self.embedding(chosen), 1))
        return nn.functional.sigmoid(deep + paddle.sum(self.wide(chosen), 1))


def choices_wide_deep(place: Place) -> Data:
    paddle.seed(0)
    columns = series.table(place.packages, "fair")
    known, offset = [], 0
    for name in [name for name in columns if name != "affairs"]:
        values, numbers = np.unique(columns[name], return_inverse=True)
        known.append(numbers + offset)
        offset += len(values)
    order = np.random.default_rng(0).permutation(len(known[0]))
    x, y = np.stack(known, 1)[order].astype(np.int64), (columns["affairs"] > 0)[order, None].astype(np.float32)
    model = WideAndDeep(offset)
    trained(model, [x[:-500]], y[:-500], nn.BCELoss(), 300, 3e-3)
    convert(place, model, [InputSpec([-1, 8], "int64", "choices")], 13)
    return split({"choices": x}, 256, 500)
