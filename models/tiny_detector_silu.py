"""Recipe of `tiny_detector_silu`: a two-scale detector in the manner of YOLOX, with all that such networks contain."""

import numpy as np
import shapes
import torch
import training
from torch import nn

EPOCHS = 20
BATCHES_PER_EPOCH = 60
BATCH = 32


class Convolution(nn.Sequential):
    """Convolution, batch normalization (folded at export), SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class Focus(nn.Module):
    """Space to depth by four strided slices."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, 4c, h/2, w/2)."""
        corners = [x[..., row::2, column::2] for row in (0, 1) for column in (0, 1)]
        return torch.cat(corners, 1)


class Bottleneck(nn.Module):
    """A residual block around a grouped convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Convolution(channels, channels), Convolution(channels, channels, 3, groups=4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        return x + self.body(x)


class Pyramid(nn.Module):
    """Max pools of three sizes beside the input, concatenated and mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in (3, 5))
        self.mix = Convolution(3 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        return self.mix(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Head(nn.Module):
    """Box distances, objectness and classes of one scale, one row for each of its cells."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.cells = (shapes.SIDE // stride) ** 2
        self.stem = Convolution(channels, 32, 3)
        self.box = nn.Conv2d(32, 4, 1)
        self.label = nn.Conv2d(32, 1 + shapes.CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, h, w) -> (n, cells, 8)."""
        x = self.stem(x)
        rows = torch.cat([self.box(x), self.label(x)], 1)
        return rows.reshape(-1, shapes.COLUMNS, self.cells).transpose(1, 2)


class Network(nn.Module):
    """Input (n, 3, 64, 64) in [0, 1], output (n, 80, 8): the 8x8 cells of stride 8, then the 4x4 cells of stride 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Focus(), Convolution(12, 16, 3), Convolution(16, 24, 3, stride=2))
        self.middle = nn.Sequential(Convolution(24, 40, 3, stride=2), Bottleneck(40))
        self.deep = nn.Sequential(Convolution(40, 64, 3, stride=2), Pyramid(64), Bottleneck(64))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.skip = nn.ConvTranspose2d(64, 16, 2, stride=2)
        self.merge = Convolution(40 + 64 + 16, 40)
        self.fine = Head(40, shapes.STRIDES[0])
        self.coarse = Head(64, shapes.STRIDES[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, 64, 64) -> (n, 80, 8)."""
        middle = self.middle(self.stem(x))
        deep = self.deep(middle)
        fine = self.merge(torch.cat([middle, self.up(deep), self.skip(deep)], 1))
        return torch.cat([self.fine(fine), self.coarse(deep)], 1)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Objectness everywhere; distances and classes only where a shape is."""
    objectness = nn.functional.binary_cross_entropy_with_logits(output[..., 4], target[..., 4])
    real = target[..., 4] > 0
    boxes = nn.functional.smooth_l1_loss(output[..., :4][real], target[..., :4][real], beta=0.1)
    classes = nn.functional.cross_entropy(output[..., 5:][real], target[..., 5:][real])
    return 10 * objectness + 2 * boxes + classes


def train() -> Network:
    """Train on scenes that are generated anew for every batch."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = Network()

    def batches(_: int) -> training.Batches:
        for _ in range(BATCHES_PER_EPOCH):
            images, targets = shapes.scenes(BATCH, rng)
            yield torch.from_numpy(images), torch.from_numpy(targets)

    training.fit(network, batches, loss, EPOCHS, EPOCHS * BATCHES_PER_EPOCH, rate=4e-3)
    return network


EXPORT = training.Export(example=torch.zeros(2, 3, shapes.SIDE, shapes.SIDE), input="images", output="detections")
