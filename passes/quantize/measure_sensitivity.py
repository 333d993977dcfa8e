"""How much the outputs suffer from each candidate alone, without labels.

One walk through the float graph: behind every layer and site the perturbed value runs through the rest of the graph
and the outputs are compared, each by its kind (`ptqc.losses`). Where a site of one source loses much, its other ranges
are tried, too. Layers are measured in two anchor formats; the others follow from their local errors by the power law
through both, since the loss grows smoothly with the layer's error. A weight that several layers multiply with is
measured in all of them at once, since their errors do not just add up: those of a recurrent network are alike at every
step. Where time is short, fewer samples are run, down to one; what there is no time for at all is predicted from local
errors.

Of a model beyond memory, measuring takes most of the time. The plan does not depend on the losses of weights that may
take one format only, so a few of them tell what is usual.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, takewhile
from typing import ClassVar

import numpy as np

from ptqc.calibration.samples import Samples
from ptqc.errors import TimeTooShort
from ptqc.execution.tensors import Held, outputs_in_files
from ptqc.execution.walk import Slicer, Suffix, Suffixes, Values, Walk
from ptqc.formats import Format, QuantParams
from ptqc.ir.external import is_in_files
from ptqc.ir.integer_arithmetic import fake_quantize
from ptqc.ir.layers import Layer, Weight
from ptqc.ir.nodes import initial
from ptqc.ir.protos import reads
from ptqc.ir.quantized_weight import QuantizedWeight
from ptqc.ir.sites import ScaleGroup
from ptqc.losses import AUTO, OutputLoss, flawed_values, recognize
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Sensitivities, WeightCandidates
from ptqc.passes.reconstruct.bias_correction import mean_shift
from ptqc.utils.deadline import NEVER, Deadline, Pace
from ptqc.utils.lazy import Lazy
from ptqc.utils.memory import give_back
from ptqc.utils.progress import IN_SHARES, in_shares

# Bits of the formats that are measured, or about as many where these were not asked for.
ANCHOR_BITS = (2, 4)
# Multiply-accumulates that all measurements may cost, but for other ranges; they decide how many samples are run.
COMPUTE = 2e12
SAMPLES = (8, 64)
# What a node and a measurement take beside their products, in products of a sample; they decide what progress says.
NODE_COST, PROBE_COST = 2e5, 1e6
# Share of the loss that all activations may cost: for a site that loses less, no other range is tried.
NEGLIGIBLE = 1e-3
# Of the weights whose format is given, those that are measured, for what the report says of all.
SAMPLED_WEIGHTS = 8
MINOR_SAMPLES = 2  # for sites that decide about little arithmetic, where COMPUTE is too little for all
Choices = Callable[[Weight, Sequence[Format]], Sequence[Format]]
Anchors = dict[str, dict[Format, float]]  # measured losses of a weight
UNREACHED = (
    "their losses are taken to be like those of others; give samples that take every branch and leave no input empty"
)
ONE_FORMAT = "that can take only one format are taken to be like those of others, as the model is large"
LEFT_OUT = "are NaN or infinite in the float model: no loss was measured there"
# Losses below this are noise of the float arithmetic.
SMALLEST_LOSS = 1e-9
# Power of the noise, relative to an output's, that tells what an error costs where nothing was measured.
NOISE = 1e-3


@dataclass(frozen=True)
class MeasureSensitivity:
    """Measure what each candidate format of a weight, and each 8-bit activation, loses at the outputs.

    loss: a kind for all outputs, or for some by name. limit: loss that activations may cost; 0: the default.
    choices: for a weight whose layers compute in float, and the formats that it was solved in, those that it may take.
    last: until when one sample is run in any case, though the deadline is over. floor: share of the weights that have
    to be measured, however little time there is.
    """

    loss: str | Mapping[str, str] = AUTO
    limit: float = 0.0
    choices: Choices = lambda _, forms: forms
    last: Deadline = NEVER
    floor: float = 0.0
    name: ClassVar[str] = "measure-sensitivity"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, candidates: WeightCandidates) -> Result[Sensitivities]:
        """How outputs are compared, the losses of sites and weights, and ranges that lose less.

        Raises TimeTooShort where there was no time to measure a share `floor` of the weights.
        """
        model = candidates.model
        slicer, forms = Slicer(model), self._forms_of(candidates)
        first, counts = _probes(candidates, forms, slicer)
        runs = _runs(first, counts)
        samples, is_enough = _samples(candidates)
        walk = Walk(slicer, samples)
        suffixes, began = Suffixes(walk), time.monotonic()
        reference = _reference(suffixes.behind(-1), candidates.deadline, runs)
        seconds, is_short = time.monotonic() - began, len(reference) < len(samples)
        if is_short:
            walk = Walk(slicer, samples[: len(reference)])
            suffixes = Suffixes(walk)
        kinds = recognize(model, samples[0], reference, self.loss)
        loss = OutputLoss.of(kinds, reference)
        minor = frozenset[str]() if is_enough else _without_layers(candidates)
        shared, tables = _tables(candidates, slicer)
        pace = Pace(candidates.deadline, runs, seconds, is_short)
        negligible = NEGLIGIBLE * limit_of(loss.unit, self.limit)
        probe = _Probe(walk, reference, loss, minor, negligible, pace, self.last, forms)
        anchors, sites, idle = Anchors(), _Sites(candidates, dict(candidates.ranges)), set[str]()
        costs = _costs(candidates, slicer, first, counts)
        steps = in_shares([*(2 * sum(costs) / len(costs) for _ in shared), *costs]) if costs else []
        with candidates.progress.stage("measure sensitivity", IN_SHARES) as stage:
            for name, part in zip(shared, steps, strict=False):
                _measure_shared(candidates, probe, suffixes, name, anchors)
                stage.advance(name, part)
            _measure_sites(sites, probe, walk.values, suffixes.behind(-1))
            while walk.position < len(walk) and self.last.leaves(0):
                part = steps[len(shared) + walk.position]
                results, suffix = walk.compute(), suffixes.behind(walk.position)
                _measure_sites(sites, probe, results, suffix)
                for name in tables & slicer.reads[walk.position]:
                    _measure_table(candidates, probe, name, suffix, anchors)
                for layer in candidates.fitted_layers:
                    if layer.name in results:
                        if not any(np.asarray(y).size for y in results[layer.name]):
                            idle.add(layer.name)
                        if layer.weight not in shared:
                            _measure_layer(candidates, probe, layer, suffix, anchors)
                walk.advance(results)
                give_back()
                stage.advance(next(iter(results)), part)
        pace.is_short |= walk.position < len(walk)
        notes = _assume_unreached(candidates, slicer, anchors, idle)
        for name, (bad, of) in flawed_values(kinds, reference).items():
            notes.append(Note(self.name, name, f"{bad:,} of {of:,} values {LEFT_OUT}", Level.WARNING))
        if left := len(candidates.weights) - len(forms):
            notes.append(Note(self.name, "", f"the losses of {left} of {len(candidates.weights)} weights {ONE_FORMAT}"))
        if pace.is_short:
            known, of = len(sites.losses), len(candidates.sites)
            notes.append(
                out_of_time(f"{known} of {of} sites and {len(anchors)} of {len(candidates.weights)} weights, roughly")
            )
            self._check_floor(len(anchors), len(forms), pace.whole / walk.count)
            sites.assume_the_rest()
        names = (weight.name for weight in candidates.weights)
        unknown = {name for name in names if name not in anchors and (pace.is_short or name not in forms)}
        usual = usual_loss(candidates, anchors, partial(loss_of_noise, loss, reference))
        result = Sensitivities.after(
            candidates,
            ranges=sites.ranges,
            kinds=kinds,
            site_losses=sites.losses,
            weight_losses=losses_of(candidates, anchors, unknown, usual),
            loss_unit=loss.unit,
        )
        return Result(result, True, tuple(notes))

    def _check_floor(self, measured: int, weights: int, least: float) -> None:
        """Raises TimeTooShort; see `apply`. least: seconds that one sample takes."""
        if measured < self.floor * weights:
            message = f"there was time to measure what {measured} of {weights} weights lose"
            raise TimeTooShort(message, least)

    def _forms_of(self, candidates: WeightCandidates) -> dict[str, Sequence[Format]]:
        """The formats that are measured, by weight; without weights that are taken to be like others."""
        measured, solved = forms_of(candidates), _solved(candidates)
        if candidates.sites or not is_in_files(candidates.model):
            return measured
        single_choice = [
            weight.name for weight in candidates.weights if len(self.choices(weight, solved[weight.name])) == 1
        ]
        result = single_choice[:: math.ceil(len(single_choice) / SAMPLED_WEIGHTS)] if single_choice else []
        return {name: forms for name, forms in measured.items() if name in result or name not in single_choice}


@dataclass(frozen=True)
class _Probe:
    """Compares outputs after a perturbation with the float outputs.

    minor: sites that are measured on few samples. negligible: a loss below which a site keeps its range. pace: counts
    runs of the whole graph on all batches. last: until when one batch is run in any case. forms: in which weights are
    measured, by weight.
    """

    walk: Walk
    reference: list[Values]
    loss: OutputLoss
    minor: frozenset[str]
    negligible: float
    pace: Pace
    last: Deadline
    forms: Mapping[str, Sequence[Format]]

    def anchored(self, candidates: WeightCandidates, name: str) -> Iterator[tuple[Format, QuantizedWeight]]:
        """The candidates of a weight that are measured."""
        for form in self.forms.get(name, ()):
            yield form, candidates.solutions[name, form]

    def batches(self, most: int | None = None) -> int | None:
        """On how many batches there is time to measure; None: on all, 0: on none."""
        part = self.pace.part()
        if part == 1:
            return most
        count = int(part * (most or self.walk.count)) or int(self.last.leaves(0))
        if not count:
            self.pace.did(self._rest, 0.0)
        return count

    def measure(self, suffix: Suffix, override: Mapping[str, Sequence[Held]], batches: int | None) -> float:
        """The loss with some values replaced, on the first few batches."""
        reference = self.reference[:batches]
        lost = max(self.loss.mean(reference, suffix.run(override, batches)), 0.0)
        self.pace.did(self._rest, len(reference) / self.walk.count)
        return lost

    @property
    def _rest(self) -> float:
        """The part of the graph that is not yet walked."""
        return 1 - self.walk.position / len(self.walk)


def forms_of(candidates: WeightCandidates) -> dict[str, Sequence[Format]]:
    """The formats whose losses say those of the others, by weight."""
    return {name: anchor_forms(forms) for name, forms in _solved(candidates).items()}


def _solved(candidates: WeightCandidates) -> dict[str, list[Format]]:
    """The formats of each weight."""
    solved: dict[str, list[Format]] = {}
    for name, form in candidates.solutions:
        solved.setdefault(name, []).append(form)
    return solved


def anchor_forms(forms: Iterable[Format]) -> Sequence[Format]:
    """Of the first family that solvers fit: those of ANCHOR_BITS; others in their place where it lacks these.

    Of two that are as near, the wider one.
    """
    scaled = {form for form in forms if form.is_scaled}
    for family in Format.families:
        if own := [form for form in scaled if form.family == family.family]:
            return tuple(dict.fromkeys(_nearest(own, bits) for bits in ANCHOR_BITS))
    return ()


def _nearest(forms: Iterable[Format], bits: int) -> Format:
    return min(forms, key=lambda form: (abs(form.bits_per_weight - bits), -form.bits))


def _runs(first: float, counts: Sequence[int]) -> float:
    """How many runs of the whole graph all measurements take: each runs what is behind its place. See `_probes`."""
    return first + sum(count * (1 - place / len(counts)) for place, count in enumerate(counts))


def _costs(candidates: WeightCandidates, slicer: Slicer, first: float, counts: Sequence[int]) -> list[float]:
    """What measuring takes at each place, in products of a sample, and at the inputs together with the first.

    first, counts: see `_probes`.
    """
    own = [NODE_COST + sum(candidates.macs.get(name, 0) for name in node.output) for node in slicer.nodes]
    behind = np.cumsum(own[::-1])[::-1]
    costs = [float(cost + count * (PROBE_COST + rest)) for cost, count, rest in zip(own, counts, behind, strict=True)]
    if costs:
        costs[0] += first * float(PROBE_COST + behind[0])
    return costs


def _probes(
    candidates: WeightCandidates, forms: Mapping[str, Sequence[Format]], slicer: Slicer
) -> tuple[float, list[int]]:
    """How often the network is run from its inputs, and from behind each place."""
    probes = Counter(source for site in candidates.sites for source in site.sources)
    anchored = {weight.name: len(forms.get(weight.name, ())) for weight in candidates.weights}
    together = shared_by_layers(candidates)
    probes.update({one.name: anchored[one.weight] for one in candidates.fitted_layers if one.weight not in together})
    tables = Counter({w.table or w.name: anchored[w.name] for w in candidates.weights if w.table or not w.layers})
    result = [sum(probes[name] for name in node.output) for node in slicer.nodes]
    read = [sum(tables[name] for name in names) for names in slicer.reads]
    # What no node makes are inputs of the graph, and weights that are measured everywhere at once.
    first = sum(probes.values()) - sum(result) + sum(anchored[name] for name in together)
    return float(first), [one + other for one, other in zip(result, read, strict=True)]


def losses_of(
    candidates: WeightCandidates, anchors: Anchors, unknown: Collection[str], usual: float | None = None
) -> dict[tuple[str, Format], float]:
    """Losses of all formats of all weights.

    unknown: of which these are predicted: what is usual for each layer's error. usual: see `usual_loss`.
    """
    each = usual_loss(candidates, anchors) if usual is None else usual
    forms, losses = forms_of(candidates), dict[tuple[str, Format], float]()
    for weight in candidates.weights:
        result = anchors.get(weight.name, {})
        if weight.name in unknown:
            places = each * places_of(weight)
            result = {form: places * candidates.errors[weight.name, form] for form in forms.get(weight.name, ())}
        losses.update(_interpolated(candidates, weight.name, result))
    return losses


def shared_by_layers(candidates: WeightCandidates) -> dict[str, Weight]:
    """The weights that several layers multiply with, by name, but for those that a table shares, too."""
    return {weight.name: weight for weight in candidates.weights if len(weight.layers) > 1 and weight.table is None}


def places_of(weight: Weight) -> int:
    """At how many places the error of a weight enters."""
    return max(len(weight.layers), 1)


def _samples(candidates: WeightCandidates) -> tuple[Samples, bool]:
    """As many samples as COMPUTE allows, and whether that is enough.

    They are held back, as weights are fitted to the others, a classifier too well.
    """
    macs = [candidates.macs[layer.name] for layer in candidates.layers]
    behind = np.cumsum([0, *macs[::-1]])[::-1]
    runs_per_layer = len(ANCHOR_BITS) + sum(len(s.sources) for s in candidates.sites) / max(len(macs), 1)
    count = int(COMPUTE / max(float(behind.sum()) * runs_per_layer, 1.0))
    samples = candidates.held_back if len(candidates.held_back) >= SAMPLES[0] else candidates.tuning
    return samples.some(int(np.clip(count, *SAMPLES))), count >= SAMPLES[0]


def _reference(whole: Suffix, deadline: Deadline, runs: float) -> list[Values]:
    """The float outputs of as many samples as there is time to run the graph on so many times.

    At least SAMPLES[0]: how much outputs vary, which losses are relative to, is not seen on fewer.
    """
    began, outputs = time.monotonic(), whole.run({})
    more = takewhile(lambda _: deadline.leaves(runs * (time.monotonic() - began)), outputs)
    return outputs_in_files(chain(islice(outputs, SAMPLES[0]), more))


def _without_layers(candidates: WeightCandidates) -> frozenset[str]:
    """Sites that no layer reads or writes: they decide about little arithmetic, and transformers have hundreds."""
    layers = {layer.name for layer in candidates.layers}
    beside = {name for k in candidates.kernels if k.node in layers for name in (*k.inputs, k.output)}
    return frozenset(site.name for site in candidates.sites if beside.isdisjoint(site.tensors))


@dataclass(frozen=True)
class _Sites:
    """What is found of the sites on the way: their losses, by name, and the ranges that lose least."""

    candidates: WeightCandidates
    ranges: dict[str, QuantParams]
    losses: dict[str, float] = field(default_factory=dict)

    def assume_the_rest(self) -> None:
        """Give those that there was no time to measure the loss that is usual."""
        known = list(self.losses.values())
        for site in self.candidates.sites:
            self.losses.setdefault(site.name, float(np.median(known)) if known else 1.0)


def _measure_sites(sites: _Sites, probe: _Probe, values: Mapping[str, Sequence[Held]], suffix: Suffix) -> None:
    for site in sites.candidates.sites:
        for source in site.sources:
            if source in values:
                batches = probe.batches(MINOR_SAMPLES if site.name in probe.minor else None)
                if batches == 0:
                    continue
                rounded = _Rounded(probe, values, suffix, source, batches)
                loss = rounded.loss(sites.ranges[site.name])
                if loss > probe.negligible and rounded.batches is None and len(site.sources) == 1:
                    loss = _take_best_range(sites, site, rounded, loss)
                sites.losses[site.name] = sites.losses.get(site.name, 0.0) + loss


@dataclass(frozen=True)
class _Rounded:
    """A value of the walk that is rounded, with the other outputs of its node."""

    probe: _Probe
    values: Mapping[str, Sequence[Held]]
    suffix: Suffix
    source: str
    batches: int | None

    def loss(self, params: QuantParams) -> float:
        values = self.values[self.source]
        rounded = Lazy(lambda batch: fake_quantize(np.asarray(values[batch]), params), len(values))
        return self.probe.measure(self.suffix, {**self.values, self.source: rounded}, self.batches)


def _take_best_range(sites: _Sites, site: ScaleGroup, rounded: _Rounded, loss: float) -> float:
    """Give a site the range that loses least at the outputs; that loss. loss: of the range that it has."""
    for params in sites.candidates.other_ranges[site.name]:
        if (result := rounded.loss(params)) < loss:
            sites.ranges[site.name], loss = params, result
    return loss


def _measure_layer(
    candidates: WeightCandidates,
    probe: _Probe,
    layer: Layer,
    suffix: Suffix,
    anchors: Anchors,
) -> None:
    for form, solution in probe.anchored(candidates, layer.weight):
        if (batches := probe.batches()) == 0:
            continue
        outputs = probe.walk.changed({layer.weight: solution.weight})[layer.name]
        shift = layer.over_output(mean_shift(candidates, layer, solution.weight))
        shifted = Lazy(partial(_shifted, outputs, shift), len(outputs))
        _add(anchors, layer.weight, form, probe.measure(suffix, {layer.name: shifted}, batches))


def _shifted(outputs: Sequence[Held], shift: np.ndarray, batch: int) -> np.ndarray:
    return np.asarray(np.asarray(outputs[batch]) + shift)


def _tables(candidates: WeightCandidates, slicer: Slicer) -> tuple[list[str], set[str]]:
    """Weights of several layers and tables that several nodes read; and tables that one does."""
    readers = Counter(name for reads in slicer.reads for name in reads)
    names = list(weights_of_tables(candidates))
    several = [*shared_by_layers(candidates), *(name for name in names if readers[name] != 1)]
    return several, {name for name in names if readers[name] == 1}


def weights_of_tables(candidates: WeightCandidates) -> dict[str, str]:
    """Constants that no layer multiplies with -> the weight whose numbers they have; most are weights themselves."""
    return {w.table or w.name: w.name for w in candidates.weights if w.table or not w.layers}


def _measure_shared(
    candidates: WeightCandidates, probe: _Probe, suffixes: Suffixes, name: str, anchors: Anchors
) -> None:
    """Measure a weight of several layers, or a table, everywhere at once."""
    layered = shared_by_layers(candidates).get(name)
    weight = name if layered is not None else weights_of_tables(candidates)[name]
    for form, solution in probe.anchored(candidates, weight):
        if (batches := probe.batches()) == 0:
            continue
        changed = {name: rows_of(solution, is_shared=weight != name)}
        if layered is not None:
            changed = {name: solution.weight, **_shifted_biases(candidates, layered, solution.weight)}
        _add(anchors, weight, form, probe.measure(suffixes.whole(changed), {}, batches))


def _shifted_biases(candidates: WeightCandidates, weight: Weight, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Biases of the layers of a weight that make up for its mean error; of those that no other layer reads."""
    read = Counter(layer.bias for layer in candidates.layers)
    shifted_biases = dict[str, np.ndarray]()
    for layer in weight.layers:
        if layer.bias is not None and read[layer.bias] == 1 and layer.is_corrected:
            bias = initial(candidates.model, layer.bias)
            shifted_biases[layer.bias] = bias + mean_shift(candidates, layer, numbers).reshape(bias.shape)
    return shifted_biases


def _measure_table(candidates: WeightCandidates, probe: _Probe, name: str, suffix: Suffix, anchors: Anchors) -> None:
    weight = weights_of_tables(candidates)[name]
    for form, rows in _anchored_rows(candidates, probe, weight, name):
        if (batches := probe.batches()) == 0:
            continue
        _add(anchors, weight, form, probe.measure(suffix, probe.walk.changed({name: rows}), batches))


def _anchored_rows(
    candidates: WeightCandidates, probe: _Probe, weight: str, name: str
) -> Iterator[tuple[Format, np.ndarray]]:
    """What a table is in each format that is measured. weight: whose numbers it has."""
    for form, solution in probe.anchored(candidates, weight):
        yield form, rows_of(solution, is_shared=weight != name)


def rows_of(solution: QuantizedWeight, *, is_shared: bool) -> np.ndarray:
    """What a table is in a format. is_shared: with a weight that layers multiply with."""
    return (solution.by_channel() if is_shared else solution).weight


def _add(anchors: Anchors, weight: str, form: Format, loss: float) -> None:
    """Count a loss of a weight, beside those at other places that read it."""
    result = anchors.setdefault(weight, {})
    result[form] = result.get(form, 0.0) + loss


def _assume_unreached(
    candidates: WeightCandidates, slicer: Slicer, anchors: Anchors, idle: Collection[str]
) -> list[Note]:
    """Give weights that no sample reaches the losses that others have at their errors.

    They are constants of branches that no sample takes, and those that only idle layers multiply with.
    idle: layers whose outputs are empty.
    """
    inside = set().union(*(reads(node) - set(node.input) for node in slicer.nodes))
    unreached = {name for name in inside.intersection(anchors) if not any(anchors[name].values())}
    for weight in candidates.weights:
        if weight.layers and weight.table is None and all(layer.name in idle for layer in weight.layers):
            unreached.add(weight.name)
    usual = usual_loss(candidates, anchors)
    for name in sorted(unreached.intersection(anchors)):
        anchors[name] = {form: usual * candidates.errors[name, form] for form in anchors[name]}
    message = f"{len(unreached)} constants are read where no sample comes: {UNREACHED}"
    return [Note(MeasureSensitivity.name, min(unreached), message, Level.WARNING)] if unreached else []


def usual_loss(candidates: WeightCandidates, anchors: Anchors, otherwise: Callable[[], float] = lambda: 1.0) -> float:
    """The loss for the error of a layer that is usual among those that were measured; else what `otherwise` gives.

    Errors are relative to the power of a layer's output. Those of a weight count once for each of its layers.
    """
    places = {weight.name: places_of(weight) for weight in candidates.weights}
    measured = [
        (loss, places[name] * candidates.errors[name, form])
        for name, losses in anchors.items()
        for form, loss in losses.items()
    ]
    result = [loss / error for loss, error in measured if loss and error]
    return float(np.median(result)) if result else otherwise()


def loss_of_noise(loss: OutputLoss, reference: Sequence[Values]) -> float:
    """The loss for the relative error of the outputs themselves: as if errors of layers arrived there as they are."""
    rng = np.random.default_rng(0)
    noisy = (
        # Sequences are lists, and are not compared.
        {name: _with_noise(array, rng) for name, array in values.items() if not isinstance(array, list)}
        for values in reference
    )
    result = loss.mean(reference, noisy) / NOISE
    return result if np.isfinite(result) and result > 0 else 1.0


def _with_noise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    values = np.asarray(array)
    if values.dtype.kind != "f" or not values.size:
        return values
    power = float(np.mean(np.square(values, dtype=np.float64)))
    noise = np.sqrt(NOISE * power) * rng.standard_normal(values.shape)
    return np.asarray(values + noise, values.dtype)


def _interpolated(
    candidates: WeightCandidates, name: str, anchors: Mapping[Format, float]
) -> dict[tuple[str, Format], float]:
    """Losses of all formats of a weight: a power law of the local error, never growing with the bits."""
    forms = sorted(form for weight, form in candidates.solutions if weight == name)
    losses = {(name, form): 0.0 for form in forms}
    points = [
        (candidates.errors[name, form], loss) for form, loss in anchors.items() if candidates.errors[name, form] > 0
    ]
    for family in Format.families:
        ceiling = np.inf
        for form in (form for form in forms if form.family == family.family):
            ceiling = min(ceiling, _power_law(points, candidates.errors[name, form]))
            losses[name, form] = ceiling
    return losses


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
