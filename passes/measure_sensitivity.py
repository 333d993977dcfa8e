"""How much the outputs suffer from each candidate alone, without labels.

One walk through the float graph: behind every layer and site the perturbed value runs through the rest of the graph
and the outputs are compared, each by its kind (`ptqc.losses`). A site of one source that matters takes the range that
loses least. Layers are measured at two anchor widths; the others follow from their local errors by the power law
through both, since the loss grows smoothly with the layer's error.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.deadline import Pace
from ptqc.execute.kept import Held
from ptqc.execute.suffix import Suffix, Suffixes
from ptqc.execute.walk import Slicer, Values, Walk
from ptqc.formats import Format, Integer, QuantParams
from ptqc.integer import fake_quantize
from ptqc.layers import Layer
from ptqc.losses import AUTO, OutputLoss, recognize
from ptqc.nodes import initial
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect
from ptqc.passes.choose_activations import limit_of
from ptqc.passes.context import Context
from ptqc.protos import reads
from ptqc.sites import Site
from ptqc.solutions import Solution

ANCHORS = (Integer(2), Integer(4))
# Multiply-accumulates that a measurement may cost; it decides how many samples are looked at. Other ranges come on top.
COMPUTE = 2e12
SAMPLES = (8, 64)
# Of what activations may cost in all; a site that loses less keeps its range.
NEGLIGIBLE = 1e-3
MINOR_SAMPLES = 2  # for sites that decide about little arithmetic, where COMPUTE does not reach
Anchors = dict[str, dict[Format, float]]  # measured losses of a weight
UNREACHED = "their losses are taken to be like those of others; give samples that take every branch"
# Losses below this are noise of the float arithmetic.
SMALLEST_LOSS = 1e-9


@dataclass(frozen=True)
class MeasureSensitivity:
    """loss: a kind for all outputs, or for some by name. limit: loss that activations may cost; 0: the default."""

    loss: str | Mapping[str, str] = AUTO
    limit: float = 0.0
    name: ClassVar[str] = "measure-sensitivity"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, model: ir.Model, context: Context) -> list[Note]:
        """Set kinds, site_losses, weight_losses and loss_unit of the context, and ranges that lose less."""
        samples, is_enough = _samples(context)
        walk = Walk(Slicer(model), list(samples.batches(1)))
        suffixes, began = Suffixes(walk), time.monotonic()
        reference = suffixes.behind(-1).run({})
        context.kinds = recognize(model, samples[0], reference, self.loss)
        loss = OutputLoss.of(context.kinds, reference)
        context.loss_unit = loss.unit
        minor = frozenset[str]() if is_enough else _without_layers(context)
        shared, tables = _tables(context, walk.slicer)
        pace = Pace(context.deadline, _runs(context, walk.slicer), time.monotonic() - began)
        probe = _Probe(walk, reference, loss, minor, NEGLIGIBLE * limit_of(loss.unit, self.limit), pace)
        anchors: Anchors = {}
        with context.progress.stage("measure sensitivity", len(walk) + len(shared)) as stage:
            for name in shared:
                _measure_shared(context, probe, suffixes, name, anchors)
                stage.advance(name)
            _measure_sites(context, probe, walk.values, suffixes.behind(-1))
            while walk.position < len(walk) and context.deadline.leaves(0):
                results, suffix = walk.compute(), suffixes.behind(walk.position)
                _measure_sites(context, probe, results, suffix)
                for name in tables & walk.slicer.reads[walk.position]:
                    _measure_table(context, probe, name, suffix, anchors)
                for layer in context.layers:
                    if layer.name in results:
                        _measure_layer(model, context, probe, layer, suffix, anchors)
                walk.advance(results)
                stage.advance(next(iter(results)))
        pace.is_short |= walk.position < len(walk)
        return [*_assume_unreached(context, walk.slicer, anchors), *_losses(context, anchors, pace)]


@dataclass(frozen=True)
class _Probe:
    """Compares outputs after a perturbation with the float outputs.

    minor: sites that few samples must do for. negligible: the loss of a site that does not matter. pace: in runs of
    the whole graph on all batches.
    """

    walk: Walk
    reference: list[Values]
    loss: OutputLoss
    minor: frozenset[str]
    negligible: float
    pace: Pace

    def batches(self, most: int | None = None) -> int | None:
        """How many there is time for; None: all of them, 0: none."""
        part = self.pace.part()
        if part == 1:
            return most
        count = int(part * (most or self.walk.count))
        if not count:
            self.pace.did(self._rest, 0.0)
        return count

    def measure(self, suffix: Suffix, override: Mapping[str, Sequence[Held]], batches: int | None) -> float:
        """The loss with some values replaced, on the first few batches."""
        outputs = suffix.run(override, batches)
        self.pace.did(self._rest, len(outputs) / self.walk.count)
        return max(self.loss.mean(self.reference[:batches], outputs), 0.0)

    @property
    def _rest(self) -> float:
        """The part of the graph that is not yet walked."""
        return 1 - self.walk.position / len(self.walk)


def _runs(context: Context, slicer: Slicer) -> float:
    """How many runs of the whole graph all measurements take: each runs what is behind its place."""
    probes = Counter(source for site in context.sites for source in site.sources)
    anchored = Counter(name for name, form in context.solutions if form in ANCHORS)
    probes.update({layer.name: anchored[layer.weight] for layer in context.layers})
    tables = Counter({weight.name: anchored[weight.name] for weight in context.weights if not weight.layers})
    behind, total = float(sum(probes.values())), 0.0
    for place, (node, read) in enumerate(zip(slicer.nodes, slicer.reads, strict=True)):
        count = sum(probes[name] for name in node.output) + sum(tables[name] for name in read)
        behind -= sum(probes[name] for name in node.output)
        total += count * (1 - place / len(slicer.nodes))
    return total + behind  # what is left are inputs of the graph


def _losses(context: Context, anchors: Anchors, pace: Pace) -> list[Note]:
    """Losses of all formats of all weights; what there was no time to measure is taken for what is usual."""
    usual = _loss_per_error(context, anchors)
    for weight in context.weights:
        found = anchors.get(weight.name, {})
        if pace.is_short and not found:
            found = {form: usual * context.errors[weight.name, form] for form, _ in _anchored(context, weight.name)}
        _interpolate(context, weight.name, found)
    if not pace.is_short:
        return []
    known, of = list(context.site_losses.values()), len(context.sites)
    for site in context.sites:
        context.site_losses.setdefault(site.name, float(np.median(known)) if known else 1.0)
    return [out_of_time(f"{len(known)} of {of} sites and {len(anchors)} of {len(context.weights)} weights, roughly")]


def _samples(context: Context) -> tuple[Samples, bool]:
    """As many samples as COMPUTE allows, and whether that is enough.

    They are held back, as weights are fitted to the others, a classifier too well.
    """
    macs = [context.macs[layer.name] for layer in context.layers]
    behind = np.cumsum([0, *macs[::-1]])[::-1]
    runs_per_layer = len(ANCHORS) + sum(len(s.sources) for s in context.sites) / max(len(macs), 1)
    count = int(COMPUTE / max(float(behind.sum()) * runs_per_layer, 1.0))
    samples = context.held_back if len(context.held_back) >= SAMPLES[0] else context.tuning
    return samples[: int(np.clip(count, *SAMPLES))], count >= SAMPLES[0]


def _without_layers(context: Context) -> frozenset[str]:
    """Sites that no layer reads or writes: they decide about little arithmetic, and transformers have hundreds."""
    layers = {layer.name for layer in context.layers}
    beside = {name for k in context.kernels if k.node in layers for name in (*k.inputs, k.output)}
    return frozenset(site.name for site in context.sites if beside.isdisjoint(site.tensors))


def _measure_sites(context: Context, probe: _Probe, values: Mapping[str, Sequence[Held]], suffix: Suffix) -> None:
    for site in context.sites:
        for source in site.sources:
            if source in values:
                batches = probe.batches(MINOR_SAMPLES if site.name in probe.minor else None)
                if batches == 0:
                    continue
                rounded = _Rounded(probe, values, suffix, source, batches)
                loss = rounded.loss(context.ranges[site.name])
                if loss > probe.negligible and rounded.batches is None and len(site.sources) == 1:
                    loss = _take_best_range(context, site, rounded, loss)
                context.site_losses[site.name] = context.site_losses.get(site.name, 0.0) + loss


@dataclass(frozen=True)
class _Rounded:
    """A value of the walk that is rounded, with the other outputs of its node."""

    probe: _Probe
    values: Mapping[str, Sequence[Held]]
    suffix: Suffix
    source: str
    batches: int | None

    def loss(self, params: QuantParams) -> float:
        rounded = [fake_quantize(np.asarray(x), params) for x in self.values[self.source][: self.batches]]
        return self.probe.measure(self.suffix, {**self.values, self.source: rounded}, self.batches)


def _take_best_range(context: Context, site: Site, rounded: _Rounded, loss: float) -> float:
    """Give a site the range that loses least at the outputs; that loss. loss: of the range that it has."""
    for params in context.other_ranges[site.name]:
        if (found := rounded.loss(params)) < loss:
            context.ranges[site.name], loss = params, found
    return loss


def _measure_layer(
    model: ir.Model,
    context: Context,
    probe: _Probe,
    layer: Layer,
    suffix: Suffix,
    anchors: Anchors,
) -> None:
    for form, solution in _anchored(context, layer.weight):
        if (batches := probe.batches()) == 0:
            continue
        outputs = probe.walk.compute({layer.weight: solution.weight})[layer.name]
        shift = layer.over_output(mean_shift(model, context, layer, solution.weight))
        loss = probe.measure(suffix, {layer.name: [np.asarray(y) + shift for y in outputs[:batches]]}, batches)
        found = anchors.setdefault(layer.weight, {})
        found[form] = found.get(form, 0.0) + loss


def mean_shift(model: ir.Model, context: Context, layer: Layer, weight: np.ndarray) -> np.ndarray:
    """(W − Ŵ) E[x]: what exact bias correction adds to the bias; zeros where there is none."""
    if not layer.is_corrected:
        return np.zeros(layer.channels, np.float32)
    delta = layer.matrix(initial(model, layer.weight) - weight)
    shift = np.einsum("gok,gk->go", delta, context.moments[layer.weight].mean)
    return np.asarray(shift.reshape(-1), np.float32)


def _tables(context: Context, slicer: Slicer) -> tuple[list[str], set[str]]:
    """Weights that no layer multiplies with: those that several nodes read, and those that one does."""
    readers = Counter(name for reads in slicer.reads for name in reads)
    names = [weight.name for weight in context.weights if not weight.layers]
    return [name for name in names if readers[name] != 1], {name for name in names if readers[name] == 1}


def _measure_shared(context: Context, probe: _Probe, suffixes: Suffixes, name: str, anchors: Anchors) -> None:
    for form, solution in _anchored(context, name):
        if (batches := probe.batches()) == 0:
            continue
        replaced = suffixes.whole({name: solution.weight})
        anchors.setdefault(name, {})[form] = probe.measure(replaced, {}, batches)


def _measure_table(context: Context, probe: _Probe, name: str, suffix: Suffix, anchors: Anchors) -> None:
    for form, solution in _anchored(context, name):
        if (batches := probe.batches()) == 0:
            continue
        outputs = probe.walk.compute({name: solution.weight})
        anchors.setdefault(name, {})[form] = probe.measure(suffix, outputs, batches)


def _assume_unreached(context: Context, slicer: Slicer, anchors: Anchors) -> list[Note]:
    """Give constants of branches that no sample takes the losses that others have at their errors."""
    inside = set().union(*(reads(node) - set(node.input) for node in slicer.nodes))
    unreached = sorted(name for name in inside.intersection(anchors) if not any(anchors[name].values()))
    usual = _loss_per_error(context, anchors)
    for name in unreached:
        anchors[name] = {form: usual * context.errors[name, form] for form in anchors[name]}
    message = f"{len(unreached)} constants are read in branches that no sample takes: {UNREACHED}"
    return [Note(MeasureSensitivity.name, unreached[0], message, Level.WARNING)] if unreached else []


def _loss_per_error(context: Context, anchors: Anchors) -> float:
    """What is usual among the losses that were measured; 1 where none was."""
    found = [(loss, context.errors[name, form]) for name, losses in anchors.items() for form, loss in losses.items()]
    return float(np.median([loss / error for loss, error in found if loss and error] or [1.0]))


def _anchored(context: Context, name: str) -> Iterator[tuple[Format, Solution]]:
    """The candidates of a weight that are measured."""
    for form in ANCHORS:
        if (solution := context.solutions.get((name, form))) is not None:
            yield form, solution


def _interpolate(context: Context, name: str, anchors: Mapping[Format, float]) -> None:
    """Losses of all formats of a weight: a power law of the local error, never growing with the bits."""
    forms = sorted(form for weight, form in context.solutions if weight == name)
    points = [(context.errors[name, form], loss) for form, loss in anchors.items() if context.errors[name, form] > 0]
    for family in Format.families:
        ceiling = np.inf
        for form in (form for form in forms if form.family == family.family):
            ceiling = min(ceiling, _power_law(points, context.errors[name, form]))
            context.weight_losses[name, form] = ceiling


def _power_law(points: Sequence[tuple[float, float]], error: float) -> float:
    """The loss at a local error, through one or two measured (error, loss) points."""
    if not points or error <= 0:
        return 0.0
    (e0, l0), (e1, l1) = points[0], points[-1]
    l0, l1 = max(l0, SMALLEST_LOSS), max(l1, SMALLEST_LOSS)
    slope = float(np.clip(np.log(l1 / l0) / np.log(e1 / e0), 0.5, 2.0)) if e0 != e1 else 1.0
    # Interpolate between the points, extrapolate from the nearer one.
    anchor_error, anchor_loss = (e1, l1) if abs(np.log(error / e1)) <= abs(np.log(error / e0)) else (e0, l0)
    return float(anchor_loss * (error / anchor_error) ** slope)
