"""Which activations are quantized: those whose integer kernels save more time than their loss is worth.

A quantized activation costs no bytes to speak of; it buys integer kernels, and costs conversions where these end. So:
minimize the time, plus what the loss is worth, subject to Σ (loss of each quantized site) ≤ limit. No time is measured,
as the same model has to give the same file: times are those that are usual for operators of these sizes
(`ptqc.passes.allocate.cost_model`). In native libraries, where conversions are parts of other kernels, the arithmetic
alone counts. The choice is then run whole, and where its true loss exceeds the limit (losses only roughly add up) the
limit of the sum is tightened.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.shapes import observed_shapes
from ptqc.execution.tensors import Held, outputs_in_files
from ptqc.execution.walk import Slicer, Suffix, Suffixes, Walk
from ptqc.formats import ActivationParams, FloatActivation, FloatRounding, Reader
from ptqc.ir.external import is_in_files
from ptqc.ir.layers import Layer
from ptqc.ir.sites import ScaleGroup, integer_kernels, source_params, useful_sites
from ptqc.losses import UNITS, OutputLoss
from ptqc.notes import Note, out_of_time
from ptqc.options import Activations, CompileOptions
from ptqc.passes.allocate.allocation import LOSS
from ptqc.passes.allocate.cost_model import CLOCKS, Clock, Network, OperatorSizes, OpLatencies
from ptqc.passes.allocate.joint import CODES, NANOSECONDS, SiteCosts, WeightCosts, joint_choice
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.calibrate import ELEMENT_COST, FLOAT_BYTES
from ptqc.passes.quantize.phases import Analysis, Sensitivities
from ptqc.passes.reconstruct.quantized_walk import run_quantized
from ptqc.solver.integer_program import Goal, solve
from ptqc.utils.lazy import Lazy

# Spending the whole limit must save at least this share of the time: what costs much and saves little stays float.
WORTH = 0.5
ATTEMPTS = 5
SMALLEST_LIMIT = 1e-30
CHECKED_SAMPLES = 32
# Samples in a batch, and bytes of the largest value of a batch: a run holds several such values, and losses more.
BATCH, BATCH_BYTES = 8, 2**25
RELATIVE_GAP, NODES = 1e-3, 20_000
# The time, and what the loss is worth of it.
PRICE = "price"
NO_WEIGHTS = WeightCosts()


def clock_of(options: CompileOptions, in_library: bool = False) -> Clock:
    """By whose times activations are chosen. in_library: in a native library conversions are parts of kernels."""
    if options.rules.wide:
        return "npu"
    return "arithmetic" if in_library else "usual"


def limit_of(unit: str, number: float) -> float:
    """Loss that activations may cost; number: 0 for the default."""
    return number or UNITS[unit].tolerance


@dataclass(frozen=True)
class ChooseActivations:
    """Choose the activations that become 8-bit codes.

    activations: auto (within the limit), integer (all that can be), float and float8 (none). limit: 0 takes the
    default. clock: by whose times.
    """

    activations: Activations = "auto"
    limit: float = 0.0
    clock: Clock = "usual"
    name: ClassVar[str] = "choose-activations"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, sensitivities: Sensitivities) -> Result[Analysis]:
        """The decision with the activations that become codes, and what they lose together."""
        if self.activations in ("float", "float8") or not sensitivities.sites:
            note = Note(self.name, "", "all activations stay float")
            return Result(Analysis.after(sensitivities), True, (note,))
        sites, checked = list(sensitivities.sites), ActivationLoss(sensitivities)
        notes, began = list[Note](), time.monotonic()
        limit = target = limit_of(sensitivities.loss_unit, self.limit)
        if self.activations == "auto":
            worth = Worth.of(sensitivities)
            times = worth.times(self.clock)
        for done in range(ATTEMPTS):
            if done and not sensitivities.deadline.leaves((time.monotonic() - began) / done):
                sites, result, notes = [], 0.0, [out_of_time(f"{done} choices of activations, all too bad")]
                break
            if self.activations == "auto":
                sites = worth.sites(limit, times)
            result = checked.loss_of(source_params(sites, sensitivities.ranges))
            if self.activations == "integer" or result <= target:
                break
            spent = sum(sensitivities.site_losses.get(site.name, 0.0) for site in sites)
            limit = max(min(limit, spent) * min(0.7, target / result), SMALLEST_LIMIT)
        else:  # the losses one by one say too little about the loss of all
            sites, result = [], 0.0
        if not sites and not notes:
            notes = [Note(self.name, "", f"all activations stay float: {worth.of_all(times)}")]
        return self._decided(sensitivities, sites, result, notes)

    @staticmethod
    def _decided(
        sensitivities: Sensitivities, sites: Sequence[ScaleGroup], loss: float, notes: Sequence[Note] = ()
    ) -> Result[Analysis]:
        chosen = {site.name: sensitivities.ranges[site.name] for site in sites}
        return Result(Analysis.after(sensitivities, activations=chosen, activation_loss=loss), True, tuple(notes))


class ActivationLoss:
    """Held-back samples on which a choice of activations is run whole, with float weights."""

    def __init__(self, sensitivities: Sensitivities) -> None:
        self._slicer = Slicer(sensitivities.model)
        self._batches = sensitivities.held_back.some(CHECKED_SAMPLES).batched(_batch(sensitivities))
        self._reference = outputs_in_files(Suffixes(Walk(self._slicer, self._batches)).behind(-1).run({}))
        self._loss = OutputLoss.of(sensitivities.kinds, self._reference)

    def loss_of(self, params: Mapping[str, ActivationParams]) -> float:
        """Mean loss with the tensors in `params` rounded."""
        if not params:
            return 0.0  # the reference is one whole run, from whose last bits a walk may differ
        outputs = run_quantized(self._slicer, self._batches, params)
        return self._loss.mean(self._reference, outputs)


def _batch(sensitivities: Sensitivities) -> int:
    """How many samples of the largest size are run together."""
    width = {layer.name: layer.width for layer in sensitivities.layers}
    largest = max((macs // width.get(name, ELEMENT_COST) for name, macs in sensitivities.macs.items()), default=0)
    return int(np.clip(BATCH_BYTES // max(FLOAT_BYTES * largest, 1), 1, BATCH))


@dataclass(frozen=True)
class Worth:
    """What the sites of a model are worth: their losses, and the time that they save.

    network, layers, sizes: what the time follows from.
    """

    sensitivities: Sensitivities
    network: Network
    layers: Mapping[str, Layer]
    sizes: OperatorSizes

    @classmethod
    def of(cls, sensitivities: Sensitivities) -> "Worth":
        """OperatorSizes are those of the largest sample."""
        network = Network.of(sensitivities.model, replace(sensitivities.roles, activations=sensitivities.ranges))
        tensors = {edge.tensor for edge in network.edges} | {one.node for one in network.operators if one.tensors}
        shapes = shapes_of(sensitivities.model, sensitivities.tuning.largest[0], tensors)
        return cls(
            sensitivities,
            network,
            {layer.name: layer for layer in sensitivities.layers},
            OperatorSizes(sensitivities.macs, shapes),
        )

    def times(self, clock: Clock = "usual") -> OpLatencies:
        """What operators take."""
        return CLOCKS[clock](self.network, self.layers, self.sizes)

    def saved(self, sites: Collection[ScaleGroup], times: OpLatencies) -> float:
        """The share of the time that codes of these sites save; negative where they take longer."""
        quantized = self.sensitivities.tensors_of({site.name for site in sites})
        whole = self.network.predict(times, ())
        return 1 - self.network.predict(times, quantized) / whole if whole else 0.0

    def of_all(self, times: OpLatencies) -> str:
        """What 8 bits for all sites would lose and save, in words."""
        loss, saved = sum(self.sensitivities.site_losses.values()), self.saved(self.sensitivities.sites, times)
        time = f"save {saved:.0%} of the time" if saved > 0 else f"take {-saved:.0%} more time"
        return f"8 bits for all of them would lose about {loss:.2g} {self.sensitivities.loss_unit} and {time}"

    def sites(self, limit: float, times: OpLatencies) -> list[ScaleGroup]:
        """The sites whose codes are worth most by these times, of those whose losses sum to at most the limit."""
        sensitivities = self.sensitivities
        # What is over the limit alone is cut off at twice the limit: the solver refuses huge coefficients.
        losses = {
            site.name: min(sensitivities.site_losses.get(site.name, 0.0) / limit, 2.0) for site in sensitivities.sites
        }
        costs = [SiteCosts(site.name, site.tensors, losses[site.name]) for site in sensitivities.sites]
        program = joint_choice(costs, NO_WEIGHTS, self.network, times)
        priced = program.with_sum(PRICE, {NANOSECONDS: 1.0, LOSS: WORTH * self.network.predict(times, ())})
        result = solve(priced, Goal(PRICE, {LOSS: 1.0}, gap=RELATIVE_GAP, nodes=NODES)).selection
        chosen = [site for site in sensitivities.sites if result[site.name] == CODES]
        return useful_sites(chosen, sensitivities.kernels, set(self.layers))


def shapes_of(model: ir.Model, feeds: Feeds, tensors: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of some tensors, as a run of one sample has them."""
    if is_in_files(model):
        return observed_shapes(model, feeds)
    names = sorted(tensors - feeds.keys())
    result = Runner(model, names).run(feeds) if names else {}
    return {name: np.shape(array) for name, array in {**feeds, **result}.items() if hasattr(array, "shape")}


# Which activations that stay real numbers are rounded to fewer digits: those that layers in float read.
#
# Their products then take half the time or less where a processor has instructions for them. Sites are taken by the
# arithmetic that they serve for each bit of loss, until all together would lose more than a share of what activations
# may cost.

SAMPLES = 8


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

    def apply(self, analysis: Analysis) -> Result[Analysis]:
        """The decision with the activations that are rounded, and what all of them lose together."""
        gains = _gains(analysis, self.format)
        if not gains:
            return Result(analysis, False)
        roundings = {name: self._rounding(analysis, name) for name in gains}
        losses = self._losses(analysis, roundings)
        order = sorted(gains, key=lambda name: losses[name] / gains[name])
        checked = ActivationLoss(analysis)
        most = analysis.activation_loss + self.share * limit_of(analysis.loss_unit, self.limit)
        for _ in range(ATTEMPTS):
            chosen = {**analysis.activations, **{name: roundings[name] for name in order}}
            result = checked.loss_of(source_params(analysis.sites, chosen))
            if result <= most:
                return Result(replace(analysis, activations=chosen, activation_loss=result), True)
            order = _cheapest(order, losses, 0.7 * sum(losses[name] for name in order))
        return Result(analysis, False)

    def _rounding(self, analysis: Analysis, site: str) -> FloatRounding:
        return self.format.of_range(analysis.ranges[site].low, analysis.ranges[site].high)

    def _losses(self, analysis: Analysis, roundings: Mapping[str, FloatRounding]) -> dict[str, float]:
        """What each site loses alone."""
        walk = Walk(Slicer(analysis.model), analysis.held_back.some(SAMPLES))
        suffixes = Suffixes(walk)
        reference = outputs_in_files(suffixes.behind(-1).run({}))
        loss = OutputLoss.of(analysis.kinds, reference)
        site_of = {source: site.name for site in analysis.sites if site.name in roundings for source in site.sources}
        losses = dict.fromkeys(roundings, 0.0)

        def measure(values: Mapping[str, Sequence[Held]], suffix: Suffix) -> None:
            for name in filter(site_of.__contains__, values):
                rounded = Lazy(partial(_rounded, roundings[site_of[name]], values[name]), len(reference))
                outputs = suffix.run({**values, name: rounded})
                losses[site_of[name]] += loss.mean(reference, outputs)

        with analysis.progress.stage(f"choose {self.format}", len(walk)) as stage:
            measure(walk.values, suffixes.behind(-1))
            while walk.position < len(walk):
                results = walk.compute()
                measure(results, suffixes.behind(walk.position))
                walk.advance(results)
                stage.advance(next(iter(results)))
        return losses


def _rounded(rounding: FloatRounding, values: Sequence[Held], batch: int) -> np.ndarray:
    return rounding.rounded(np.asarray(values[batch]))


def _gains(analysis: Analysis, form: FloatActivation) -> dict[str, int]:
    """Multiply-accumulates of the layers in float that read each site and gain by its rounding; no site of codes."""
    quantized = analysis.tensors_of(analysis.activations)
    on_codes = {kernel.node for kernel in integer_kernels(analysis.kernels, quantized)}
    readers: dict[str, list[Layer]] = {}
    for layer in analysis.layers:
        site = analysis.site_of.get(layer.input)
        if site is not None and site.name not in analysis.activations and layer.name not in on_codes:
            readers.setdefault(site.name, []).append(layer)
    gaining = {name: [x for x in layers if form.gains([Reader(x.reads_pairs)])] for name, layers in readers.items()}
    return {name: sum(analysis.macs[layer.name] for layer in layers) for name, layers in gaining.items() if layers}


def _cheapest(order: Sequence[str], losses: Mapping[str, float], most: float) -> list[str]:
    """The sites in this order, without those that would take the sum of the losses beyond so much."""
    cheapest, total = [], 0.0
    for name in order:
        if total + losses[name] <= most:
            cheapest.append(name)
            total += losses[name]
    return cheapest
