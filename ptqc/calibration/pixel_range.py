"""Which values a float image input takes, as far as the graph says so by a normalization at its head.

A pixel p in 0..1 becomes low + (high - low) p, per channel.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc.calibration.pictures import MEAN, STD
from ptqc.ir.nodes import constant, number, only_consumer
from ptqc.ir.operators import Trait, named

Array = np.ndarray
BYTES = 255.0
AFFINE = named(Trait.AFFINE)
MOVES = named(Trait.COPIES) | {"Transpose"}


@dataclass(frozen=True)
class PixelRange:
    """What pixels of 0 and of 1 become, one value per channel (or one for all), and how messages name it."""

    low: Array
    high: Array
    description: str

    def apply(self, picture: Array) -> Array:
        """Pixels (channels, height, width) as the model takes them."""
        low, high = (bound.reshape(-1, 1, 1) for bound in (self.low, self.high))
        taken: Array = (low + (high - low) * picture).astype(np.float32)
        return taken

    @classmethod
    def between(cls, low: float, high: float) -> "PixelRange":
        """The same range in every channel."""
        return cls(np.array([low]), np.array([high]), f"pixels from {low:g} to {high:g}")

    @classmethod
    def normalized(cls, mean: Array, std: Array, description: str) -> "PixelRange":
        """The range in which the pixels of photographs have this mean and standard deviation."""
        return cls(mean - std * MEAN / STD, mean + std * (1 - MEAN) / STD, description)


RAW = PixelRange.between(0, BYTES)
# What trained networks take that do not say what they take, likeliest first.
COMMON = (
    PixelRange.normalized(np.zeros(1), np.ones(1), "pixels of mean 0 and variance 1"),
    PixelRange.between(0, 1),
    PixelRange.between(-1, 1),
    RAW,
)


def stated_range(value: ir.Value) -> PixelRange | None:
    """The range of an image input by the normalization that reads it; None if there is none."""
    factor, shift = np.ones(1), np.zeros(1)
    normalized = False
    while (node := only_consumer(value)) is not None and not node.domain:
        if node.op_type == "BatchNormalization" and not normalized:
            return _by_batch_normalization(node)
        if node.op_type in AFFINE and (affine := _affine(node, value)) is not None:
            factor, shift = factor * affine[0], shift * affine[0] + affine[1]
            normalized = True
        elif node.op_type not in MOVES:
            break
        value = node.outputs[0]
    return _by_affine(factor, shift) if normalized else None


def _by_batch_normalization(node: ir.Node) -> PixelRange | None:
    mean, variance = constant(node.inputs[3]), constant(node.inputs[4])
    if mean is None or variance is None:
        return None
    std = np.sqrt(np.asarray(variance, np.float64) + number(node, "epsilon", 1e-5))
    return PixelRange.normalized(mean, std, "pixels with the statistics of the batch normalization that reads them")


def _by_affine(factor: Array, shift: Array) -> PixelRange | None:
    """The range that (x - mean) / std is made for: bytes unless mean and std are those of pixels from 0 to 1.

    A negative mean undoes another normalization: that of pixels from 0 to 1.
    """
    if not np.all(factor > 0):
        return None
    mean, std = -shift / factor, 1 / factor
    if mean.min() < 0:
        return PixelRange(mean, mean + std, "pixels that the normalization behind the input takes to 0 to 1")
    top = 1.0 if (mean + std).max() <= 2 else BYTES
    return PixelRange(np.zeros(1), np.full(1, top), f"pixels from 0 to {top:g}, by the normalization behind the input")


def _affine(node: ir.Node, value: ir.Value) -> tuple[Array, Array] | None:
    """(a, c) such that the node computes a x + c, with one value per channel; None for anything else."""
    left, right = node.inputs
    operand = constant(right if left is value else left)
    if operand is None or operand.size not in (1, 3) or (left is not value and node.op_type == "Div"):
        return None
    c = np.asarray(operand, np.float64).reshape(-1)
    if node.op_type in ("Mul", "Div"):
        return (c if node.op_type == "Mul" else 1 / c), np.zeros(1)
    if left is not value and node.op_type == "Sub":
        return -np.ones(1), c
    return np.ones(1), c if node.op_type == "Add" else -c
