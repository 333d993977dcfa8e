"""Classifiers of pictures in PyTorch."""

from itertools import pairwise

import pictures
import torch
from common import Data, Place, split
from torch import Tensor, nn
from torch.nn import functional
from torch_tools import CALIBRATION, by_dynamo, by_torchscript, check, classified, convolution, seeded, tensors, train


def head(channels: int, classes: int) -> nn.Sequential:
    """The end of a classifier."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """He et al. 2016, with two convolutions."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(inside, outside, stride=stride), nn.ReLU(), convolution(outside, outside))
        self.past = convolution(inside, outside, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.past(x))


def digits_resnet(place: Place) -> Data:
    seeded()
    x, y = pictures.digits(16)
    model = nn.Sequential(
        convolution(1, 24), nn.ReLU(), Residual(24, 24, 1), Residual(24, 48, 2), Residual(48, 96, 2), head(96, 10)
    )
    train(model, tensors(x[:1200], y[:1200]), classified, 150)
    check(model, x[1200:], y[1200:])
    by_torchscript(place, model, {"image": torch.zeros(1, 1, 16, 16)}, ["logits"], 7)
    return split({"image": x}, CALIBRATION, 597)


class InvertedResidual(nn.Module):
    """Sandler et al. 2018: expand, depthwise, project."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        wide = inside * expansion
        self.add = stride == 1 and inside == outside
        self.body = nn.Sequential(
            convolution(inside, wide, 1),
            nn.ReLU6(),
            convolution(wide, wide, 3, stride, wide),
            nn.ReLU6(),
            convolution(wide, outside, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.add else self.body(x)


def shapes_mobilenet_v2(place: Place) -> Data:
    seeded()
    x, y = pictures.single_shapes(8500, 48)
    stages = [(16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    model = nn.Sequential(
        convolution(3, 16, 3, 2),
        nn.ReLU6(),
        *(InvertedResidual(*stage) for stage in stages),
        convolution(80, 192, 1),
        nn.ReLU6(),
        head(192, pictures.KINDS),
    )
    train(model, tensors(x[:8000], y[:8000]), classified, 600)
    check(model, x[8000:], y[8000:])
    by_torchscript(place, model, {"input": torch.zeros(1, 3, 48, 48)}, ["output"], 9)
    return split({"input": x}, CALIBRATION, 500)


class Shuffled(nn.Module):
    """Ma et al. 2018: half of the channels pass, the other half is convolved, then both are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            convolution(half, half, 1),
            nn.ReLU(),
            convolution(half, half, 3, 1, half),
            convolution(half, half, 1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        past, new = x.chunk(2, 1)
        joined = torch.cat([past, self.body(new)], 1)
        count, channels, height, width = joined.shape
        return joined.reshape(count, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


def digits_shufflenet(place: Place) -> Data:
    seeded()
    x, y = pictures.digits(24)
    model = nn.Sequential(
        *(convolution(1, 32, 3, 2), nn.ReLU(), Shuffled(32), Shuffled(32)),
        *(convolution(32, 96, 3, 2), nn.ReLU(), Shuffled(96), Shuffled(96), Shuffled(96)),
        *(convolution(96, 160, 1), nn.ReLU(), head(160, 10)),
    )
    train(model, tensors(x[:1200], y[:1200]), classified, 300)
    check(model, x[1200:], y[1200:])
    by_torchscript(place, model, {"image": torch.zeros(1, 1, 24, 24)}, ["logits"], 10)
    return split({"image": x}, CALIBRATION, 597)


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2021, the patches by three convolutions (Xiao et al. 2021), to learn from few pictures."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        widths = (3, width // 4, width // 2, width)
        stages = (nn.Sequential(convolution(a, b, 3, 2), nn.ReLU()) for a, b in pairwise(widths))
        self.patches = nn.Sequential(*stages, nn.Conv2d(width, width, 1))
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // 8) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, pictures.KINDS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.body(tokens)[:, 0])


def shapes_vit(place: Place) -> Data:
    seeded()
    x, y = pictures.single_shapes(10500, 48)
    model = VisionTransformer(48, 96, 4)
    train(model, tensors(x[:10000], y[:10000]), classified, 900, 1e-3)
    check(model, x[10000:], y[10000:])
    by_dynamo(place, model, {"pixels": torch.zeros(2, 3, 48, 48)}, ["logits"], 18)
    return split({"pixels": x}, CALIBRATION, 500)
