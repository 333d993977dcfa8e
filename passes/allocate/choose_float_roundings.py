"""Which activations that stay real numbers are rounded to fewer digits: those that layers in float read.

Their products then take half the time or less where a processor has instructions for them. Sites are taken by the
arithmetic that they serve for each bit of loss, until all together would lose more than a share of what activations may
cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ptqc.execution.bounded import outputs_in_files
from ptqc.execution.compressed import Held
from ptqc.execution.suffix import Suffix, Suffixes
from ptqc.execution.walk import Slicer, Walk
from ptqc.formats import FloatActivation, FloatRounding, Reader
from ptqc.ir.layers import Layer
from ptqc.ir.sites import integer_kernels, source_params
from ptqc.losses import OutputLoss
from ptqc.passes.allocate.choose_activations import Checked, limit_of
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.lazy import Lazy

SAMPLES = 8
ATTEMPTS = 5


@dataclass(frozen=True)
class ChooseFloatRoundings:
    """Choose the float activations that are rounded to a format of fewer digits.

    limit: loss that activations may cost in all; 0 takes the default. share: of it, what these may cost.
    """

    format: FloatActivation
    limit: float = 0.0
    share: float = 1.0
    name: ClassVar[str] = "choose-float-roundings"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Decided) -> Result[Decided]:
        """The decision with the activations that are rounded, and what all of them lose together."""
        gains = _gains(given, self.format)
        if not gains:
            return Result(given, False)
        roundings = {name: self._rounding(given, name) for name in gains}
        losses = self._losses(given, roundings)
        order = sorted(gains, key=lambda name: losses[name] / gains[name])
        checked = Checked(given)
        most = given.activation_loss + self.share * limit_of(given.loss_unit, self.limit)
        for _ in range(ATTEMPTS):
            chosen = {**given.activations, **{name: roundings[name] for name in order}}
            found = checked.loss_of(source_params(given.sites, chosen))
            if found <= most:
                return Result(replace(given, activations=chosen, activation_loss=found), True)
            order = _cheapest(order, losses, 0.7 * sum(losses[name] for name in order))
        return Result(given, False)

    def _rounding(self, given: Decided, site: str) -> FloatRounding:
        return self.format.of_range(given.ranges[site].low, given.ranges[site].high)

    def _losses(self, given: Decided, roundings: Mapping[str, FloatRounding]) -> dict[str, float]:
        """What each site loses alone."""
        walk = Walk(Slicer(given.model), given.held_back[:SAMPLES])
        suffixes = Suffixes(walk)
        reference = outputs_in_files(suffixes.behind(-1).run({}))
        loss = OutputLoss.of(given.kinds, reference)
        site_of = {source: site.name for site in given.sites if site.name in roundings for source in site.sources}
        found = dict.fromkeys(roundings, 0.0)

        def measure(values: Mapping[str, Sequence[Held]], suffix: Suffix) -> None:
            for name in filter(site_of.__contains__, values):
                rounded = Lazy(partial(_rounded, roundings[site_of[name]], values[name]), len(reference))
                outputs = suffix.run({**values, name: rounded})
                found[site_of[name]] += loss.mean(reference, outputs)

        with given.progress.stage(f"choose {self.format}", len(walk)) as stage:
            measure(walk.values, suffixes.behind(-1))
            while walk.position < len(walk):
                results = walk.compute()
                measure(results, suffixes.behind(walk.position))
                walk.advance(results)
                stage.advance(next(iter(results)))
        return found


def _rounded(rounding: FloatRounding, values: Sequence[Held], batch: int) -> np.ndarray:
    return rounding.rounded(np.asarray(values[batch]))


def _gains(given: Decided, form: FloatActivation) -> dict[str, int]:
    """Multiply-accumulates of the layers in float that read each site and gain by its rounding; no site of codes."""
    quantized = given.tensors_of(given.activations)
    on_codes = {kernel.node for kernel in integer_kernels(given.kernels, quantized)}
    readers: dict[str, list[Layer]] = {}
    for layer in given.layers:
        site = given.site_of.get(layer.input)
        if site is not None and site.name not in given.activations and layer.name not in on_codes:
            readers.setdefault(site.name, []).append(layer)
    gaining = {name: [x for x in layers if form.gains([Reader(x.reads_pairs)])] for name, layers in readers.items()}
    return {name: sum(given.macs[layer.name] for layer in layers) for name, layers in gaining.items() if layers}


def _cheapest(order: Sequence[str], losses: Mapping[str, float], most: float) -> list[str]:
    """The sites in this order, without those that would take the sum of the losses beyond so much."""
    kept, total = [], 0.0
    for name in order:
        if total + losses[name] <= most:
            kept.append(name)
            total += losses[name]
    return kept
