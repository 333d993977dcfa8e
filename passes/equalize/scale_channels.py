"""Channels of activations multiplied by factors that the weights before and behind them make up for."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.ir.channels import ChannelTies, Role
from ptqc.ir.editing import set_constant
from ptqc.ir.nodes import initial
from ptqc.notes import Note
from ptqc.passes.base import Effect, Probed, Result


@dataclass(frozen=True, eq=False)
class ScaleChannels:
    """Let channels of activations carry more or less of the range of their tensor, and keep the function.

    ties: of the model, by `ptqc.ir.scale_rules`. factors: (sets,), positive; 1 for those that are fixed.
    """

    ties: ChannelTies
    factors: np.ndarray
    name: ClassVar[str] = "scale-channels"
    effect: ClassVar[Effect] = Effect.REWRITE

    def apply(self, given: Probed) -> Result[Probed]:
        """Weights, biases and gains of norms are changed in place; one note says how far."""
        for name, role in self.ties.constants.items():
            if any((self.factors[factor.numbers] != 1).any() for factor in role.factors):
                set_constant(given.model, name, scaled(initial(given.model, name), role, self.factors))
        moved = self.factors[self.factors != 1]
        if not moved.size:
            return given.rewritten([])
        told = f"{moved.size} sets of channels carry {moved.min():.2g} to {moved.max():.2g} times their values"
        return given.rewritten([Note(self.name, "", told)])


def scaled(array: np.ndarray, role: Role, factors: np.ndarray) -> np.ndarray:
    """A constant as it has to be for channels that carry these multiples of their values; computed in float64."""
    view = array.astype(np.float64).reshape(role.view)
    for factor in role.factors:
        sizes = [size if axis in factor.axes else 1 for axis, size in enumerate(view.shape)]
        view = view * (factors[factor.numbers] ** factor.power).reshape(sizes)
    return np.ascontiguousarray(view.reshape(array.shape), array.dtype)
