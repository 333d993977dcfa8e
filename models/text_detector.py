"""Train a small text detector a little: depthwise layers whose channels reach very differently far, a probability map.

    python models/text_detector.py FOLDER

As in the detectors of OCR (DBNet on a MobileNet): inverted residuals with HardSwish, features of several sizes added
up, and a sigmoid at the end. The gains of normalization begin log-normal, so that channels differ by factors of
hundreds, which HardSwish does not let anyone scale away. FOLDER gets `model.onnx`, `calibration.npz` and
`evaluation.npz`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import training
from torch import nn

SIDE = 64
SPREAD = 1.2
BATCH, BATCHES, RATE = 16, 250, 3e-3
CALIBRATION, EVALUATION = 128, 64


def pages(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (n, 3, 64, 64) with lines of strokes, and where the lines are (n, 1, 64, 64)."""
    images = np.empty((count, 3, SIDE, SIDE), np.float32)
    maps = np.zeros((count, 1, SIDE, SIDE), np.float32)
    for image, where in zip(images, maps, strict=True):
        colour, ink = rng.uniform(-1, 1, (3, 1, 1)), rng.uniform(-1, 1, (3, 1, 1))
        image[:] = colour + rng.uniform(0, 0.5) * np.linspace(-1, 1, SIDE)[:, None]
        for _ in range(rng.integers(1, 5)):
            height, width = rng.integers(5, 10), rng.integers(15, 45)
            top, left = rng.integers(0, SIDE - height), rng.integers(0, SIDE - width)
            strokes = rng.random((height, width)) < np.where(rng.random(width) < 0.6, 0.75, 0.05)
            box = (slice(top, top + height), slice(left, left + width))
            image[(slice(None), *box)] = np.where(strokes, ink, image[(slice(None), *box)])
            where[(0, *box)] = 1
        image += 0.05 * rng.standard_normal(image.shape)
    return images, maps


class Convolution(nn.Sequential):
    """Convolution, batch normalization with gains of all sizes, HardSwish."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outputs)
        nn.init.normal_(norm.weight, 0, SPREAD)
        norm.weight.data.exp_()
        super().__init__(layer, norm, nn.Hardswish())


class Block(nn.Module):
    """An inverted residual: wide, depthwise, narrow without a function."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        wide = 4 * inputs
        self.body = nn.Sequential(Convolution(inputs, wide), Convolution(wide, wide, 3, stride, wide))
        self.narrow = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c', h', w')."""
        found: torch.Tensor = self.narrow(self.body(x))
        return x + found if self.adds else found


class Network(nn.Module):
    """Input (n, 3, 64, 64), output (n, 1, 64, 64): the probability that a pixel is of a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, 12, 3, 2)
        self.fine = nn.Sequential(Block(12, 16), Block(16, 16))
        self.middle = nn.Sequential(Block(16, 24, 2), Block(24, 24))
        self.deep = nn.Sequential(Block(24, 40, 2), Block(40, 40), Block(40, 40))
        self.sides = nn.ModuleList(nn.Conv2d(channels, 24, 1) for channels in (16, 24, 40))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.head = nn.Sequential(Convolution(24, 24, 3), nn.ConvTranspose2d(24, 1, 2, 2), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, h, w) -> (n, 1, h, w)."""
        fine = self.fine(self.stem(x))
        middle = self.middle(fine)
        fine, middle, deep = (side(y) for side, y in zip(self.sides, (fine, middle, self.deep(middle)), strict=True))
        found: torch.Tensor = self.head(fine + self.up(middle + self.up(deep)))
        return found


def train(batches: int = BATCHES) -> Network:
    """Train on pages that are drawn anew for every batch."""
    torch.manual_seed(0)
    rng, network = np.random.default_rng(0), Network()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    for _ in range(batches):
        x, y = (torch.from_numpy(array) for array in pages(BATCH, rng))
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


EXPORT = training.Export(example=torch.zeros(2, 3, SIDE, SIDE), input="image", output="map")


def main() -> None:
    """Write the model and its samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    EXPORT.write(train(), folder / "model.onnx")
    rng = np.random.default_rng(1)
    for name, count in (("calibration", CALIBRATION), ("evaluation", EVALUATION)):
        np.savez(folder / f"{name}.npz", image=pages(count, rng)[0])


if __name__ == "__main__":
    main()
