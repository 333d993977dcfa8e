"""Which activations are quantized: as much integer arithmetic as a limit on the loss from activations allows.

A quantized activation costs no bytes either way; it buys integer kernels. So: maximize the arithmetic on integer
kernels, less what its loss is worth, subject to Σ (loss of each quantized site) ≤ limit. The choice is then run
whole, and where its true loss exceeds the limit (losses only roughly add up) the limit of the sum is tightened.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ptqc.execute.bounded import outputs_in_files
from ptqc.execute.suffix import Suffixes
from ptqc.execute.walk import Slicer, Walk
from ptqc.formats import ActivationParams
from ptqc.graph.sites import Site, source_params, useful_sites
from ptqc.losses import UNITS, OutputLoss
from ptqc.notes import Note, out_of_time
from ptqc.options import Activations
from ptqc.passes.base import Effect, Result
from ptqc.passes.decide.calibrate import ELEMENT_COST, FLOAT_BYTES
from ptqc.passes.decide.phases import Assessed, Decided
from ptqc.passes.tune.quantized_walk import run_quantized
from ptqc.solvers.choices import Condition, Event, JointChoice, Option
from ptqc.solvers.integer_program import Goal, solve

# Spending the whole limit must buy at least this share of the arithmetic: what costs much and saves little stays float.
WORTH = 0.5
ATTEMPTS = 5
SMALLEST_LIMIT = 1e-30
CHECKED_SAMPLES = 32
# Samples in a batch, and bytes of the largest value of a batch: a run holds several such values, and losses more.
BATCH, BATCH_BYTES = 8, 2**25
RELATIVE_GAP, NODES = 1e-3, 20_000
# States of a site; and what a choice spends of the limit, and that less the arithmetic that it gains.
FLOAT, CODES = "float", "codes"
SPENT, WORST = "spent", "spent less gained"


def limit_of(unit: str, given: float) -> float:
    """Loss that activations may cost; given: 0 for the default."""
    return given or UNITS[unit].tolerance


@dataclass(frozen=True)
class ChooseActivations:
    """Choose the activations that become 8-bit codes.

    activations: auto (within the limit), integer (all that can be), float and float8 (none). limit: 0 takes the
    default.
    """

    activations: Activations = "auto"
    limit: float = 0.0
    name: ClassVar[str] = "choose-activations"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, given: Assessed) -> Result[Decided]:
        """The decision with the activations that become codes, and what they lose together."""
        if self.activations in ("float", "float8") or not given.sites:
            note = Note(self.name, "", "all activations stay float")
            return Result(Decided.after(given), True, (note,))
        sites, checked = list(given.sites), Checked(given)
        notes, began = list[Note](), time.monotonic()
        limit = target = limit_of(given.loss_unit, self.limit)
        for done in range(ATTEMPTS):
            if done and not given.deadline.leaves((time.monotonic() - began) / done):
                sites, found, notes = [], 0.0, [out_of_time(f"{done} choices of activations, all too bad")]
                break
            if self.activations == "auto":
                sites = _within(given, limit)
            found = checked.loss_of(source_params(sites, given.ranges))
            if self.activations == "integer" or found <= target:
                break
            spent = sum(given.site_losses.get(site.name, 0.0) for site in sites)
            limit = max(min(limit, spent) * min(0.7, target / found), SMALLEST_LIMIT)
        else:  # the losses one by one say too little about the loss of all
            sites, found = [], 0.0
        chosen = {site.name: given.ranges[site.name] for site in sites}
        return Result(Decided.after(given, activations=chosen, activation_loss=found), True, tuple(notes))


class Checked:
    """Held-back samples on which a choice of activations is run whole, with float weights."""

    def __init__(self, given: Assessed) -> None:
        self._slicer = Slicer(given.model)
        self._batches = given.held_back[:CHECKED_SAMPLES].batched(_batch(given))
        self._reference = outputs_in_files(Suffixes(Walk(self._slicer, self._batches)).behind(-1).run({}))
        self._loss = OutputLoss.of(given.kinds, self._reference)

    def loss_of(self, params: Mapping[str, ActivationParams]) -> float:
        """Mean loss with the tensors in `params` rounded."""
        if not params:
            return 0.0  # the reference is one whole run, from whose last bits a walk may differ
        outputs = run_quantized(self._slicer, self._batches, params)
        return self._loss.mean(self._reference, outputs)


def _batch(given: Assessed) -> int:
    """How many samples of the largest size are run together."""
    width = {layer.name: layer.width for layer in given.layers}
    largest = max((macs // width.get(name, ELEMENT_COST) for name, macs in given.macs.items()), default=0)
    return int(np.clip(BATCH_BYTES // max(FLOAT_BYTES * largest, 1), 1, BATCH))


def _within(given: Assessed, limit: float) -> list[Site]:
    """The sites of the most integer arithmetic whose losses sum to at most the limit."""
    # What is over the limit alone is cut off at twice the limit: the solver refuses huge coefficients.
    spent = {site.name: min(given.site_losses.get(site.name, 0.0) / limit, 2.0) for site in given.sites}
    options = [Option(name, CODES, {SPENT: share, WORST: WORTH * share}) for name, share in spent.items()]
    options += [Option(name, FLOAT) for name in spent]
    everything = max(sum(given.macs.values()), 1)
    events = []
    for kernel in given.kernels:
        tensors = [*kernel.inputs, *([] if kernel.float_output else [kernel.output])]
        if all(name in given.site_of for name in tensors):
            needed = dict.fromkeys(given.site_of[name].name for name in tensors)
            gain = given.macs.get(kernel.node, 0) / everything
            events.append(Event(kernel.node, tuple(Condition((name, CODES)) for name in needed), {WORST: -gain}))
    found = solve(JointChoice(tuple(options), tuple(events)), Goal(WORST, {SPENT: 1.0}, gap=RELATIVE_GAP, nodes=NODES))
    kept = [site for site in given.sites if found.selection[site.name] == CODES]
    return useful_sites(kept, given.kernels, {layer.name for layer in given.layers})
