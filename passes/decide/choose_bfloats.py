"""Which activations that stay real numbers are rounded to bfloat16: those that convolutions in float read.

Their products then take half the time where a processor has instructions for them, and the weights are exact: codes of
8 bits have no more digits. Sites are taken by the arithmetic that they serve for each bit of loss, until all together
would lose more than a share of what activations may cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ptqc.execute.compressed import Held
from ptqc.execute.suffix import Suffix, Suffixes
from ptqc.execute.walk import Slicer, Walk
from ptqc.formats import BFLOAT16, Rounding
from ptqc.graph.sites import integer_kernels, source_params
from ptqc.losses import OutputLoss
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.choose_activations import Checked, limit_of
from ptqc.passes.decide.phases import Decided

# Of the limit on the loss from activations.
SHARE = 0.25
SAMPLES = 8
ATTEMPTS = 5


@dataclass(frozen=True)
class ChooseBfloats:
    """Choose the float activations that are rounded to bfloat16.

    limit: loss that activations may cost in all; 0 takes the default.
    """

    limit: float = 0.0
    name: ClassVar[str] = "choose-bfloats"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Decided) -> Result[Decided]:
        """The decision with the activations that are rounded to bfloat16, and what all of them lose together."""
        gains = _gains(given)
        if not gains:
            return Result(given, False)
        losses = self._losses(given, gains)
        order = sorted(gains, key=lambda name: losses[name] / gains[name])
        checked = Checked(given)
        most = given.activation_loss + SHARE * limit_of(given.loss_unit, self.limit)
        for _ in range(ATTEMPTS):
            chosen = {**given.activations, **dict.fromkeys(order, Rounding(BFLOAT16))}
            found = checked.loss_of(source_params(given.sites, chosen))
            if found <= most:
                return Result(replace(given, activations=chosen, activation_loss=found), True)
            order = _cheapest(order, losses, 0.7 * sum(losses[name] for name in order))
        return Result(given, False)

    def _losses(self, given: Decided, gains: Mapping[str, int]) -> dict[str, float]:
        """What each site loses alone."""
        walk = Walk(Slicer(given.model), list(given.held_back[:SAMPLES].batches(1)))
        suffixes = Suffixes(walk)
        reference = suffixes.behind(-1).run({})
        loss = OutputLoss.of(given.kinds, reference)
        site_of = {source: site.name for site in given.sites if site.name in gains for source in site.sources}
        found = dict.fromkeys(gains, 0.0)

        def measure(values: Mapping[str, Sequence[Held]], suffix: Suffix) -> None:
            for name in filter(site_of.__contains__, values):
                rounded = [BFLOAT16.round(np.asarray(x)) for x in values[name]]
                outputs = suffix.run({**values, name: rounded})
                found[site_of[name]] += loss.mean(reference, outputs)

        with given.progress.stage("choose bfloat16", len(walk)) as stage:
            measure(walk.values, suffixes.behind(-1))
            while walk.position < len(walk):
                results = walk.compute()
                measure(results, suffixes.behind(walk.position))
                walk.advance(results)
                stage.advance(next(iter(results)))
        return found


def _gains(given: Decided) -> dict[str, int]:
    """Multiply-accumulates of the convolutions in float that read each site, of those that none may be codes."""
    quantized = given.tensors_of(given.activations)
    on_codes = {kernel.node for kernel in integer_kernels(given.kernels, quantized)}
    gains: dict[str, int] = {}
    for layer in given.layers:
        site = given.site_of.get(layer.input)
        if site is None or site.name in given.activations:
            continue
        if layer.reads_pairs and layer.name not in on_codes:
            gains[site.name] = gains.get(site.name, 0) + given.macs[layer.name]
    return gains


def _cheapest(order: Sequence[str], losses: Mapping[str, float], most: float) -> list[str]:
    """The sites in this order, without those that would take the sum of the losses beyond so much."""
    kept, total = [], 0.0
    for name in order:
        if total + losses[name] <= most:
            kept.append(name)
            total += losses[name]
    return kept
