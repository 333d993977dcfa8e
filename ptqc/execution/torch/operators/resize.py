"""Resize: every axis on its own, by a choice of entries (nearest) or by a matrix of weights (linear, cubic)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.execution.torch.operators.signature import Check, Operators, whole_numbers
from ptqc.ir.nodes import integer, integers, number, text

ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class Axis:
    """How one axis of `size` entries becomes one of `target`; scale = output over input, as the node says it."""

    size: int
    target: int
    scale: float


def _resize(
    node: ir.Node,
    x: Tensor,
    _region: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    numbers = [axis % x.ndim for axis in integers(node, "axes", list(range(x.ndim)))]
    lengths = [x.shape[i] for i in numbers]
    axes = _by_scales(lengths, scales) if sizes is None else _by_sizes(node, lengths, whole_numbers(sizes))
    for i, axis in zip(numbers, axes, strict=True):
        if axis.scale != 1:
            x = _nearest(node, x, i, axis) if text(node, "mode", "nearest") == "nearest" else _mixed(node, x, i, axis)
    return x


def _by_scales(lengths: list[int], scales: Tensor | None) -> list[Axis]:
    factors = [] if scales is None else [float(scale) for scale in scales.tolist()]
    return [Axis(length, int(length * factor), factor) for length, factor in zip(lengths, factors, strict=True)]


def _by_sizes(node: ir.Node, lengths: list[int], sizes: list[int]) -> list[Axis]:
    factors = [size / length for size, length in zip(sizes, lengths, strict=True)]
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [Axis(*axis) for axis in zip(lengths, sizes, factors, strict=True)]
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [Axis(length, int(factor * length + 0.5), factor) for length in lengths]


def _positions(node: ir.Node, axis: Axis) -> np.ndarray:
    """Where each output entry lies on the input axis."""
    x = np.arange(axis.target, dtype=np.float64)
    match text(node, "coordinate_transformation_mode", "half_pixel"):
        case "asymmetric":
            return x / axis.scale
        case "align_corners":
            return x * (axis.size - 1) / max(axis.target - 1, 1)
        case "pytorch_half_pixel" if axis.target == 1:
            return np.zeros(1)
        case "half_pixel_symmetric":
            return axis.size / 2 * (1 - axis.target / (axis.scale * axis.size)) + (x + 0.5) / axis.scale - 0.5
    return (x + 0.5) / axis.scale - 0.5


def _nearest(node: ir.Node, x: Tensor, number_: int, axis: Axis) -> Tensor:
    rounding = ROUNDINGS[text(node, "nearest_mode", "round_prefer_floor")]
    chosen = rounding(_positions(node, axis)).clip(0, axis.size - 1).astype(np.int64)
    factor = axis.target // axis.size
    if factor and np.array_equal(chosen, np.arange(axis.target) // factor):
        return _repeated(x, number_, factor)
    return x.index_select(number_, torch.from_numpy(chosen))


def _repeated(x: Tensor, axis: int, factor: int) -> Tensor:
    """Like index_select with every index `factor` times; its gradient is a sum, which is much faster."""
    wide = x.unsqueeze(axis + 1).expand(*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
    return wide.flatten(axis, axis + 1)


def _mixed(node: ir.Node, x: Tensor, number_: int, axis: Axis) -> Tensor:
    matrix = torch.from_numpy(_weights(node, axis)).to(x.dtype)
    return torch.tensordot(x, matrix, ([number_], [1])).movedim(-1, number_)


def _weights(node: ir.Node, axis: Axis) -> np.ndarray:
    """(target, size): how much of each input entry goes into each output entry."""
    is_cubic = text(node, "mode", "nearest") == "cubic"
    narrow = min(axis.scale, 1.0) if integer(node, "antialias", 0) else 1.0
    positions = _positions(node, axis)
    reach = int(np.ceil((2 if is_cubic else 1) / narrow))
    sources = np.floor(positions).astype(np.int64)[:, None] + np.arange(-reach, reach + 2)
    distances = np.abs(sources - positions[:, None]) * narrow
    parts = _cubic(distances, number(node, "cubic_coeff_a", -0.75)) if is_cubic else np.maximum(1 - distances, 0)
    if integer(node, "exclude_outside", 0):
        parts = parts * ((sources >= 0) & (sources < axis.size))
    parts = parts / parts.sum(1, keepdims=True)
    weights = np.zeros((axis.target, axis.size))
    np.add.at(weights, (np.arange(axis.target)[:, None], sources.clip(0, axis.size - 1)), parts)
    return weights


def _cubic(distances: np.ndarray, a: float) -> np.ndarray:
    """Keys' convolution kernel."""
    d = distances
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _without_region(node: ir.Node) -> str | None:
    mode = text(node, "coordinate_transformation_mode", "half_pixel")
    return f"its coordinates are {mode}" if mode == "tf_crop_and_resize" else None


OPERATORS: Operators = {"Resize": _resize}
CHECKS: dict[str, Check] = {"Resize": _without_region}
