"""Channels of activations multiplied by factors that the weights before and behind them make up for."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.ir.channels import ChannelTies, Role
from ptqc.ir.nodes import initial, set_constant
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

    def apply(self, probed: Probed) -> Result[Probed]:
        """Weights, biases and gains of norms are changed in place; one note says how far."""
        for name, role in self.ties.constants.items():
            if any((self.factors[factor.numbers] != 1).any() for factor in role.factors):
                set_constant(probed.model, name, scaled(initial(probed.model, name), role, self.factors))
        moved = self.factors[self.factors != 1]
        if not moved.size:
            return probed.rewritten([])
        message = f"{moved.size} sets of channels carry {moved.min():.2g} to {moved.max():.2g} times their values"
        return probed.rewritten([Note(self.name, "", message)])


def scaled(array: np.ndarray, role: Role, factors: np.ndarray) -> np.ndarray:
    """A constant as it has to be for channels that carry these multiples of their values; computed in float64."""
    view = array.astype(np.float64).reshape(role.view)
    for factor in role.factors:
        sizes = [size if axis in factor.axes else 1 for axis, size in enumerate(view.shape)]
        view = view * (factors[factor.numbers] ** factor.power).reshape(sizes)
    return np.ascontiguousarray(view.reshape(array.shape), array.dtype)


# Factors for channels of activations, so that one scale for a whole tensor serves all of them better.
#
# SmoothQuant (Xiao et al. 2023, arXiv 2211.10438, eq. 4) divides channel j by s_j = max|x_j|^α / max|w_j|^(1−α) and
# lets the weights that read it make up for that. With α = ½ the ranges of activations and of weights become alike.

ALPHA = 0.5
# A channel that was hardly seen to be active may be in use.
MOST = 64.0
# Where no channel reaches so many times what half of them reach, nothing is gained that samples could show.
UNEVEN = 8.0
# Factors of the model's inputs that differ by more: a scale for each channel is worth nodes of its own.
MOST_UNEVEN = 64.0


def balance(reach: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many times its value each channel should carry, whatever that is: as `smoothing`, but nothing is cut off.

    A channel that never moved carries what gives its weights the size of others.
    """
    factors, is_seen = np.ones(len(reach)), (reach > 0) & (weights > 0)
    if not is_seen.any():
        return factors
    factors[is_seen] = np.sqrt(weights[is_seen] / reach[is_seen])
    usual = float(np.median(weights[is_seen] / factors[is_seen]))
    is_still = ~is_seen & (weights > 0)
    factors[is_still] = weights[is_still] / usual
    factors[~is_seen & ~is_still] = np.median(factors[is_seen])
    return factors


def unevenness(reach: np.ndarray) -> float:
    """The largest magnitude of any channel over that of the median channel. reach: (channels,), not negative."""
    middle = float(np.median(reach[reach > 0])) if (reach > 0).any() else 0.0
    return float(reach.max()) / middle if middle else 1.0


def smoothing(reach: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How many times its value each channel should carry (channels,); geometric mean 1, but for what is cut off.

    reach: largest magnitudes seen of each; weights: largest magnitudes of the weights that read it.
    """
    is_seen = (reach > 0) & (weights > 0)
    factors = np.ones(len(reach))
    factors[is_seen] = weights[is_seen] ** (1 - ALPHA) / reach[is_seen] ** ALPHA
    if is_seen.any():
        factors[is_seen] /= np.exp(np.log(factors[is_seen]).mean())
    return np.clip(factors, 1 / MOST, MOST)
