"""Codes that a gradient can move: a real position among a weight's levels, rounded to a level on the way forward.

The gradient of the code passes to the position as if nothing were rounded (Esser et al. 2020, Learned step size
quantization, arXiv 1902.08153, section 2). The position starts as far towards the float weight as leaves the code as it
is.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ptqc.execution.torch.types import tensor_of
from ptqc.formats import Coded, spread
from ptqc.formats.levels import indices
from ptqc.ir.quantized_weight import Solution

FARTHEST = 0.2  # of the way to the next level: only a gradient that stays the same moves a code over ½
NEIGHBOURS = 16  # pairs among which one is rounded to: a step moves a position by little
SEARCHED = 2**16  # pairs at a time


class Latent(Protocol):
    """The codes of one weight."""

    @property
    def position(self) -> Tensor:
        """What is learned, in units of the distance between levels."""

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""


def latent(solution: Solution, weight: np.ndarray) -> Latent:
    """The latent codes of a solution for a float weight."""
    ratio = np.asarray(weight / spread(solution.scale, weight.ndim, solution.axis), np.float32)
    return LatentPairs.of(solution, ratio) if solution.form.group == 2 else LatentCodes.of(solution, ratio)


@dataclass(frozen=True, eq=False)
class LatentCodes:
    """levels: sorted codes that the weight may take. position: in units of their index. kept: 0 where the code is 0."""

    levels: Tensor
    position: Tensor
    kept: Tensor | None = None

    @classmethod
    def of(cls, solution: Solution, ratio: np.ndarray) -> "LatentCodes":
        """The latent codes of a solution; ratio: weight / scale."""
        assert isinstance(solution.form, Coded)
        levels = solution.form.levels(solution.codes)
        # Zeros that are no level stay zeros, wherever their position goes.
        index = np.minimum(np.searchsorted(levels, solution.codes), len(levels) - 1)
        away = ratio - solution.codes
        neighbour = levels[np.clip(index + np.where(away > 0, 1, -1), 0, len(levels) - 1)]
        gap = np.maximum(np.abs(neighbour - levels[index]), 1)
        position = index + np.clip(away / gap, -FARTHEST, FARTHEST)
        kept = tensor_of((solution.codes != 0).astype(np.float32)) if solution.form.keeps_zeros else None
        return cls(tensor_of(levels), tensor_of(position.astype(np.float32)).requires_grad_(), kept)

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""
        index = torch.round(self.position.detach()).clamp(0, len(self.levels) - 1)
        found = self.levels[index.long()]
        return found if self.kept is None else found * self.kept

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""
        return self.rounded() + (self.position - self.position.detach())


@dataclass(eq=False)
class LatentPairs:
    """Two neighbouring codes at a time. levels (K, 2). position (pairs, 2): in units of `gap`, a typical distance.

    near (K, n): the levels nearest to each level, itself first. index (pairs): where each pair was last.
    """

    levels: Tensor
    near: Tensor
    gap: float
    shape: tuple[int, ...]
    position: Tensor
    index: Tensor

    @classmethod
    def of(cls, solution: Solution, ratio: np.ndarray) -> "LatentPairs":
        """The latent codes of a solution; ratio: weight / scale."""
        index, levels = indices(solution.codes, 2)
        real = levels.astype(np.float32)
        distance = np.sqrt(((real[:, None] - real) ** 2).sum(-1))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
        next_one = np.sort(distance, axis=1)[:, min(1, len(levels) - 1)]
        away = ratio.reshape(-1, 2) - real[index]
        length = np.maximum(np.linalg.norm(away, axis=1), 1e-30)
        start = real[index] + away * np.minimum(1, FARTHEST * next_one[index] / length)[:, None]
        gap = float(max(next_one.mean(), 1.0))
        position = tensor_of((start / gap).astype(np.float32)).requires_grad_()
        return cls(tensor_of(real), tensor_of(near), gap, ratio.shape, position, tensor_of(index.astype(np.int64)))

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""
        points = self.position.detach() * self.gap
        parts = zip(points.split(SEARCHED), self.index.split(SEARCHED), strict=True)
        self.index = torch.cat([self._nearest(x, index) for x, index in parts])
        return self.levels[self.index].reshape(self.shape)

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""
        moved = (self.position * self.gap).reshape(self.shape)
        return self.rounded() + (moved - moved.detach())

    def _nearest(self, points: Tensor, index: Tensor) -> Tensor:
        near = self.near[index]
        distance = (self.levels[near] - points[:, None]).square().sum(-1)
        return near.gather(1, distance.argmin(1, keepdim=True))[:, 0]
