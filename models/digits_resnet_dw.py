"""Recipe of `digits_resnet_dw`: residual, depthwise and pre-activation blocks that read distorted digits."""

import digits
import numpy as np
import torch
import training
from torch import nn

EPOCHS = 45
BATCH = 64


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch normalization, left apart in the exported file."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """The basic block of ResNet: two convolutions beside the identity, ReLU after the sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels)
        self.second = convolution(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Separable(nn.Sequential):
    """Depthwise and pointwise convolution, each with ReLU6, as in MobileNet."""

    def __init__(self, inputs: int, outputs: int, stride: int, kernel: int = 3) -> None:
        depthwise = convolution(inputs, inputs, kernel, stride, groups=inputs)
        super().__init__(depthwise, nn.ReLU6(), convolution(inputs, outputs, 1), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project linearly, add: the block of MobileNetV2."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.body = nn.Sequential(
            convolution(channels, wide, 1),
            nn.ReLU6(),
            convolution(wide, wide, groups=wide),
            nn.ReLU6(),
            convolution(wide, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        return x + self.body(x)


class PreActivation(nn.Module):
    """Normalization before the convolution, as in ResNet v2: the first one follows a concat and cannot fold into it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm2d(channels)
        self.first = convolution(channels, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        return x + self.second(torch.relu(self.first(torch.relu(self.normalize(x)))))


class Network(nn.Module):
    """Input (n, 1, 16, 16) in [0, 1], output (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(1, 32), nn.ReLU())
        self.early = nn.Sequential(Residual(32), Separable(32, 64, stride=2), Residual(64), InvertedResidual(64, 3))
        self.fine = Separable(64, 64, stride=2)
        self.coarse = Separable(64, 64, stride=2, kernel=5)
        self.late = nn.Sequential(PreActivation(128), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(128, digits.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 1, 16, 16) -> (n, 10)."""
        x = self.early(self.stem(x))
        x = torch.cat([self.fine(x), self.coarse(x)], 1)
        return self.classifier(self.late(x).flatten(1))


def train() -> Network:
    """Train on copies of the training part that are distorted anew in every epoch."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    (images, labels), _ = digits.split()
    network = Network()

    def batches(_: int) -> training.Batches:
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            yield torch.from_numpy(digits.distort(images[chosen], rng)), torch.from_numpy(labels[chosen])

    steps = EPOCHS * -(-len(images) // BATCH)
    training.fit(network, batches, nn.functional.cross_entropy, EPOCHS, steps, rate=4e-3)
    return network


EXPORT = training.Export(
    example=torch.zeros(2, 1, digits.SIDE, digits.SIDE),
    input="input",
    output="logits",
    fold_normalization=False,
)
