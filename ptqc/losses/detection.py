"""Boxes and scores in one output: what a detector says of every anchor.

s_{a,c}: the probability of class c at anchor a, times the objectness where the model gives one; w_a = max_c s_{a,c} of
the float model. With binary divergences in nats and errors relative to the variance v (weighted by w, too),
loss = [Σ_a Σ_c KL(s_{a,c} ‖ ŝ_{a,c}) + BOX Σ_a w_a Σ_G mean_{c in G} (ŷ_{a,c} − y_{a,c})² / v_c] / Σ_a w_a,
so that anchors of the background decide nothing and a score that falls is seen wherever it is. The divergence of two
Gaussians of variance v is half the relative squared error, and a box has four of them: BOX = 2. Weights by the model's
own scores: Li et al. 2022, YOLOv6, arXiv 2209.02976, section 2.5.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from ptqc.errors import UsageError
from ptqc.losses.base import FITTED, PER_DETECTION, RELATIVE, Arrays, Group, OutputFacts, OutputKind, Unit, rows
from ptqc.losses.divergence import binary_divergence
from ptqc.losses.relative import floored
from ptqc.losses.weighted import Weighted

SCORES = "scores"  # the name of their loss
BOX = 2.0  # nats


@dataclass(frozen=True)
class Detection(OutputKind):
    """axis: of the channels. groups: of scores and of other values; one score beside several others is objectness."""

    axis: int = 2
    groups: tuple[Group, ...] = ()
    share: float = field(default=1.0, compare=False, metadata=FITTED)
    variance: np.ndarray | None = field(default=None, compare=False, metadata=FITTED)
    name: ClassVar[str] = "detection"

    @property
    def unit(self) -> Unit:
        return PER_DETECTION

    @classmethod
    def recognize(cls, facts: OutputFacts) -> "OutputKind | None":
        """Scores beside other values, at several places."""
        several = facts.axis is not None and facts.positions > 1
        return cls.asked(facts) if several and len({group.scores for group in facts.groups}) == 2 else None

    @classmethod
    def asked(cls, facts: OutputFacts) -> "OutputKind":
        if facts.axis is None or not any(group.scores for group in facts.groups):
            raise UsageError(
                f"loss: output {facts.name!r} cannot be judged as {cls.name}: no channels with probabilities were found"
            )
        return cls(facts.axis, facts.groups)

    def fitted(self, values: Arrays) -> Self:
        """With its constants."""
        result = Weighted.of(lambda: self._weighed(values))
        for group in self.groups:
            result.variance[group.channels] = floored(result.variance[group.channels])
        return replace(self, share=result.share, variance=result.variance)

    def _weighed(self, values: Arrays) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Weights and anchors of each sample."""
        for value in values:
            anchors = rows(value, self.axis)
            yield self.scores(anchors).max(1), anchors

    def losses(self, reference: np.ndarray, quantized: np.ndarray) -> dict[str, float]:
        assert self.variance is not None
        y, z = rows(reference, self.axis), rows(quantized, self.axis)
        scores = self.scores(y)
        weight = scores.max(1)
        losses = {SCORES: float(binary_divergence(scores, self.scores(z)).sum(1).mean() / self.share)}
        for group in self.groups:
            if not group.scores:
                error = ((z - y)[:, group.channels] ** 2 / self.variance[group.channels]).mean(1)
                losses[str(group)] = float((weight * error).mean() / self.share)
        return losses

    def combine(self, losses: Mapping[str, float]) -> float:
        """Of the output."""
        return float(sum(loss if name == SCORES else BOX * loss for name, loss in losses.items()))

    def scores(self, anchors: np.ndarray) -> np.ndarray:
        """(anchors, classes): probabilities that something of the class is there."""
        scores = sorted((group for group in self.groups if group.scores), key=lambda group: group.stop - group.start)
        result = [anchors[:, group.channels] for group in scores]
        if len(result) == 2 and result[0].shape[1] == 1:
            return np.asarray(result[0] * result[1])
        return np.concatenate(result, 1)

    def units(self) -> dict[str, Unit]:
        return {SCORES: PER_DETECTION} | {str(group): RELATIVE for group in self.groups if not group.scores}

    def parts(self) -> dict[str, tuple[int, slice] | None]:
        return {str(group): (self.axis, group.channels) for group in self.groups}

    def describe(self) -> str:
        return f"boxes and scores, channels on axis {self.axis}"
