"""Squared error relative to the variance of each channel: what images, features, places and plain numbers lose.

For a group G of channels, with variances v over samples and positions of the float outputs,
loss_G = mean over c in G and positions of (ŷ_c − y_c)² / max(v_c, VARIANCE_FLOOR · mean v_G); the loss of the output is
the mean over its groups, so that groups of another scale neither drown nor are drowned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ptqc.losses.base import (
    FITTED,
    LARGE_LOSS,
    RELATIVE,
    Arrays,
    Figure,
    Group,
    OutputFacts,
    OutputKind,
    Pair,
    Unit,
    sizes_vary,
)

# Channels with less than this share of the mean channel variance are measured against that share instead,
# so that outputs that hardly ever move (a class that never occurs) do not decide.
VARIANCE_FLOOR = 0.05


@dataclass(frozen=True)
class Relative(OutputKind):
    """axis: of the channels; None: all values have one variance. groups: of channels that are judged together."""

    axis: int | None = None
    groups: tuple[Group, ...] = ()
    variance: np.ndarray | None = field(default=None, compare=False, metadata=FITTED)
    is_target: ClassVar[bool] = True

    @property
    def unit(self) -> Unit:
        return RELATIVE

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        return cls(facts.axis, facts.groups)

    def fitted(self, values: Arrays) -> Self:
        """With its constants."""
        return replace(self, variance=variance_of(values, self.axis, self.groups))

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        assert self.variance is not None
        error = (reference.astype(np.float64) - quantized) ** 2
        if self.variance.ndim == 0:
            return {"": float((error / self.variance).mean())}
        assert self.axis is not None
        shape = [1] * reference.ndim
        shape[self.axis] = -1
        relative = error / self.variance.reshape(shape)
        if len(self.groups) < 2:
            return {"": float(relative.mean())}
        relative = np.moveaxis(relative, self.axis, 0)
        return {str(group): float(relative[group.channels].mean()) for group in self.groups}

    def combine(self, losses: Mapping[str, float]) -> float:
        """Of the output."""
        return float(np.mean(list(losses.values())))

    def parts(self) -> dict[str, tuple[int, slice] | None]:
        if self.axis is None or len(self.groups) < 2:
            return {"": None}
        return {str(group): (self.axis, group.channels) for group in self.groups}

    def figures(self, pairs: Sequence[Pair], loss: float, sqnr: Mapping[str, float]) -> list[Figure]:
        """What the user is told."""
        return [
            *super().figures(pairs, loss, sqnr),
            Figure("variance", 1 - loss, f"{100 * loss:.2f} % of the variance lost", 1 - LARGE_LOSS),
        ]


def variance_of(values: Arrays, axis: int | None, groups: Sequence[Group] = ()) -> np.ndarray:
    """Variance over samples and positions, floored within each group; one for all where there are no channels."""
    if axis is None or sizes_vary(values, axis):
        return floored(_variance(value.reshape(1, -1) for value in values)[0])
    variance = _variance(np.moveaxis(value, axis, 0).reshape(value.shape[axis], -1) for value in values)
    if len(groups) < 2:
        return floored(variance)
    return np.concatenate([floored(variance[group.channels]) for group in groups])


def _variance(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Of each row over all pieces of it, which are looked at one after the other (Chan et al. 1983, eq. 2.1)."""
    count, mean, squares = 0, np.zeros(1), np.zeros(1)
    for piece in rows:
        more, values = piece.shape[1], piece.astype(np.float64)
        if not more:
            continue
        middle = values.mean(1)
        apart = middle - mean
        values -= middle[:, None]
        squares = squares + np.einsum("ij,ij->i", values, values) + apart**2 * (count * more / (count + more))
        mean, count = mean + apart * (more / (count + more)), count + more
    return np.asarray(squares / max(count, 1))


def floored(variance: np.ndarray) -> np.ndarray:
    """No less than VARIANCE_FLOOR of the mean."""
    return np.asarray(np.maximum(variance, max(VARIANCE_FLOOR * float(variance.mean()), 1e-12)))
