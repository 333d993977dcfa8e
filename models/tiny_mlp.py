"""Recipe of `tiny_mlp`: fully connected layers that squeeze an 8x8 digit through 24 numbers and draw it again."""

from itertools import pairwise

import digits
import numpy as np
import torch
import training
from torch import nn

EPOCHS = 150
BATCH = 64
WIDTHS = (64, 192, 96, 24, 96, 192, 64)


class Network(nn.Sequential):
    """Input and output (n, 64): the pixels of one digit in [0, 1]."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])


def train() -> Network:
    """Train on the training part of the digits, undistorted."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    (images, _), _ = digits.split()
    pixels = torch.from_numpy(images.reshape(len(images), -1))
    network = Network()

    def batches(_: int) -> training.Batches:
        order = rng.permutation(len(pixels))
        for start in range(0, len(order), BATCH):
            chosen = pixels[order[start : start + BATCH]]
            yield chosen, chosen

    steps = EPOCHS * -(-len(pixels) // BATCH)
    training.fit(network, batches, nn.functional.mse_loss, EPOCHS, steps, rate=3e-3)
    return network


EXPORT = training.Export(example=torch.zeros(2, WIDTHS[0]), input="pixels", output="drawn")
