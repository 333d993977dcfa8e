"""Codes that a gradient can move: a real position on a weight's list of levels, rounded to a level on the way forward.

The gradient of the code passes to the position as if nothing were rounded (Esser et al. 2020, Learned step size
quantization, arXiv 1902.08153, section 2). The position starts as far towards the float weight as leaves the code as it
is.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptqc import grids
from ptqc.execute.torch.types import tensor_of
from ptqc.solutions import Solution

FARTHEST = 0.45  # of the way to the next level; beyond ½ the code would change


@dataclass(frozen=True, eq=False)
class LatentCodes:
    """levels: sorted codes that the weight may take. position: in units of their index, learned."""

    levels: Tensor
    position: Tensor

    @classmethod
    def of(cls, solution: Solution, weight: np.ndarray) -> "LatentCodes":
        """At the codes of a solution for a float weight."""
        levels = _levels(solution)
        index = np.searchsorted(levels, solution.codes)
        shape = [1] * weight.ndim
        shape[solution.axis] = -1
        away = weight / solution.scale.reshape(shape) - solution.codes
        neighbour = levels[np.clip(index + np.where(away > 0, 1, -1), 0, len(levels) - 1)]
        gap = np.maximum(np.abs(neighbour - levels[index]), 1)
        position = index + np.clip(away / gap, -FARTHEST, FARTHEST)
        moves = solution.form.group == 1  # one code of a pair cannot move alone
        return cls(tensor_of(levels), tensor_of(position.astype(np.float32)).requires_grad_(moves))

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""
        index = torch.round(self.position.detach()).clamp(0, len(self.levels) - 1)
        return self.levels[index.long()]

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""
        return self.rounded() + (self.position - self.position.detach())


def _levels(solution: Solution) -> np.ndarray:
    if solution.form.is_codebook:
        return np.unique(solution.codes).astype(np.float32)
    return np.asarray(grids.code_of(np.arange(2**solution.form.bits), solution.form), np.float32)
