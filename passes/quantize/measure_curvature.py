"""How much the outputs suffer from each candidate alone, from second derivatives: for networks that take long to run.

Near the float model, a change δ loses ½ δᵀ H δ, where H, the Gauss-Newton matrix of the outputs' loss, is the mean of
g gᵀ over gradients g along random directions of the outputs (`ptqc.losses.directions`). One sweep back gives g for all
weights and activations, and the mean of ½ (g · δ)² over sweeps is what δ loses. Errors of a weight's channels are taken
to have nothing to do with each other, so that it loses ½ Σ_c E[(g_c · δ_c)²], which few sweeps find; the same goes for
the elements of a table. An activation is taken as a whole. The diagonal of H (HesScale, Elsayed, Mahmood 2022, arXiv
2210.11639) leaves out how errors add up over positions and inputs. `measure_sensitivity` runs the rest of the network
for each candidate instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptqc.calibration.samples import Samples
from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.tensors import outputs_in_files
from ptqc.formats import Format, QuantParams
from ptqc.ir.layers import Layer
from ptqc.ir.sites import ScaleGroup
from ptqc.losses import OutputLoss, Outputs, recognize
from ptqc.losses.directions import directions
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.measure_sensitivity import (
    NEGLIGIBLE,
    SAMPLES,
    Anchors,
    MeasureSensitivity,
    forms_of,
    losses_of,
    rows_of,
    weights_of_tables,
)
from ptqc.passes.quantize.phases import Sensitivities, WeightCandidates
from ptqc.passes.reconstruct.bias_correction import mean_shift
from ptqc.utils.lazy import Lazy
from ptqc.utils.parallel import in_order

if TYPE_CHECKING:
    from torch import Tensor

    from ptqc.execution.torch.graph import TorchGraph

# Multiply-accumulates of all sweeps; they decide how many samples are looked at.
COMPUTE = 2e12
# Directions of each sample.
SWEEPS = 2
# What a sweep back takes, in runs: for the inputs of layers, and for their weights.
BACK = 2
# Bytes that a sample takes while its gradients are found, in those of its values.
HELD = 2
UNREACHED = "no gradient reaches {} of {} weights and {} of {} activations: their losses are taken to be like others'"


@dataclass(frozen=True)
class MeasureCurvature(MeasureSensitivity):
    """Estimate what each candidate format of a weight, and each 8-bit activation, loses at the outputs, with torch.

    Where gradients cannot be had, losses are measured as `MeasureSensitivity` does, and a note says why.
    """

    name: ClassVar[str] = "measure-curvature"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, candidates: WeightCandidates) -> Result[Sensitivities]:
        """How outputs are compared, the losses of sites and weights, and ranges that lose less."""
        try:
            return self._estimated(candidates)
        except Unsupported as reason:
            result = super().apply(candidates)
            note = Note(self.name, "", f"losses were measured at the outputs instead: {reason}", Level.WARNING)
            return Result(result.output, result.changed, (*result.notes, note))

    def _estimated(self, candidates: WeightCandidates) -> Result[Sensitivities]:
        """Raises Unsupported where there are no gradients."""
        from ptqc.execution.torch.graph import TorchGraph, one_torch_thread

        feeds = _feeds(candidates)
        runner = Runner(candidates.model)
        reference = outputs_in_files(runner.run(sample) for sample in feeds)
        loss = OutputLoss.of(recognize(candidates.model, feeds[0], reference, self.loss), reference)
        with one_torch_thread():
            sweeps = _Sweeps(candidates, TorchGraph(candidates.model), loss)
            result, done = _all(sweeps, Lazy(lambda place: (feeds[place], reference[place]), len(feeds)))
        notes = [Note(self.name, "", f"losses are second-order estimates from {done * SWEEPS} gradients")]
        notes += [out_of_time(f"the gradients of {done} of {len(feeds)} samples")] if done < len(feeds) else []
        anchors = _anchors(sweeps.forms, result)
        notes += _unreached(candidates, result, anchors)
        ranges, site_losses = _of_sites(candidates, result, NEGLIGIBLE * limit_of(loss.unit, self.limit))
        sensitivities = Sensitivities.after(
            candidates,
            ranges=ranges,
            kinds=loss.kinds,
            site_losses=site_losses,
            weight_losses=losses_of(
                candidates, anchors, {weight.name for weight in candidates.weights} - anchors.keys()
            ),
            loss_unit=loss.unit,
        )
        return Result(sensitivities, True, tuple(notes))


def _feeds(candidates: WeightCandidates) -> Samples:
    """As many samples as COMPUTE allows, held back, as weights are fitted to the others."""
    samples = candidates.held_back if len(candidates.held_back) >= SAMPLES[0] else candidates.tuning
    count = COMPUTE / ((1 + BACK * SWEEPS) * max(sum(candidates.macs.values()), 1))
    return samples.some(int(np.clip(count, *SAMPLES)))


@dataclass
class _SquareSums:
    """Sums over samples, of which larger ones count more: of (g · δ)² over sweeps.

    weights: by weight, for each format that is looked at. sites: by source, for each range. count: of the samples.
    bytes: of the values of one.
    """

    weights: dict[str, np.ndarray] = field(default_factory=dict)
    sites: dict[str, np.ndarray] = field(default_factory=dict)
    count: float = 0.0
    bytes: int = 0

    def add(self, other: "_SquareSums", share: float) -> None:
        """Count another sample. share: for how many."""
        self.count += share
        for sums, more in zip(self._sums, other._sums, strict=True):
            for name, value in more.items():
                _add(sums, name, share * value)

    def mean(self) -> "_SquareSums":
        """Of a sample. Raises Unsupported for gradients that are no numbers."""
        if not all(np.isfinite(value).all() for sums in self._sums for value in sums.values()):
            raise Unsupported("gradients are not finite")
        weights, sites = ({name: value / self.count for name, value in sums.items()} for sums in self._sums)
        return _SquareSums(weights, sites)

    @property
    def _sums(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        return self.weights, self.sites


def _add(sums: dict[str, np.ndarray], name: str, value: np.ndarray) -> None:
    """Count a value."""
    sums[name] = sums[name] + value if name in sums else value


@dataclass(frozen=True, eq=False)
class _Sweeps:
    """What the gradients and errors of one sample say."""

    candidates: WeightCandidates
    graph: "TorchGraph"
    loss: OutputLoss

    @cached_property
    def forms(self) -> Mapping[str, Sequence[Format]]:
        """Of each weight those that are looked at; losses of the others follow from their errors."""
        return forms_of(self.candidates)

    @cached_property
    def layers(self) -> Mapping[str, Layer]:
        return {layer.name: layer for layer in self.candidates.layers}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Layer]]:
        """The layers of each weight that has any."""
        return {weight.name: weight.layers for weight in self.candidates.weights if weight.layers}

    @cached_property
    def tables(self) -> Mapping[str, str]:
        """Constants that no layer multiplies with -> the weight whose numbers they have."""
        return weights_of_tables(self.candidates)

    @cached_property
    def ranges(self) -> Mapping[str, Sequence[QuantParams]]:
        """What each source of a site may be rounded to, its own range first."""
        return {source: _ranges(self.candidates, site) for site in self.candidates.sites for source in site.sources}

    def of(self, sample: tuple[int, Feeds, Outputs]) -> _SquareSums:
        """Means over the directions of one sample. Raises Unsupported for what torch cannot run."""
        from ptqc.execution.torch.graph import Backward

        number, feeds, reference = sample
        random, result = np.random.default_rng((self.candidates.seed, number)), _SquareSums()
        sums = dict[str, np.ndarray]()  # of gradients over the positions of a layer, by channel

        def take(name: str, value: "Tensor", gradient: "Tensor") -> None:
            if not gradient.any():  # as Round leaves it
                return
            if name in self.layers:
                sums[name] = _by_channel(self.layers[name], gradient)
            if name in self.ranges:
                _add(result.sites, name, _rounded(value, gradient, self.ranges[name]) / SWEEPS)
            if name in self.readers:  # behind the outputs of its layers
                _add(result.weights, name, self._of_weight(name, value, gradient, sums) / SWEEPS)
            if name in self.tables:
                _add(result.weights, self.tables[name], self._of_table(name, value, gradient) / SWEEPS)

        constants = self.graph.constants.keys() & {*self.readers, *self.tables}
        run = Backward(self.graph, feeds, constants, {*self.layers, *self.ranges}, take)
        for _ in range(SWEEPS):
            sums.clear()
            run.along(directions(self.loss, reference, random))
        result.bytes = run.bytes
        return result

    def _of_weight(self, name: str, value: "Tensor", gradient: "Tensor", sums: Mapping[str, np.ndarray]) -> np.ndarray:
        """Σ (g · δ)² over output channels for each format, with what biases make up for."""
        from ptqc.execution.torch.types import tensor_of

        layers, squares = self.readers[name], []
        for form in self.forms[name]:
            weight = self.candidates.solutions[name, form].weight
            products = gradient * (tensor_of(weight) - value)
            changed = products.movedim(layers[0].channel_axis, 0).flatten(1).sum(1).double().numpy()
            for layer in layers:
                if layer.name in sums:
                    changed = changed + sums[layer.name] * mean_shift(self.candidates, layer, weight)
            squares.append(float(changed @ changed))
        return np.array(squares)

    def _of_table(self, name: str, value: "Tensor", gradient: "Tensor") -> np.ndarray:
        """Σ g² δ² over elements for each format: they are rounded one by one."""
        from ptqc.execution.torch.types import tensor_of

        weight = self.tables[name]
        solutions = (self.candidates.solutions[weight, form] for form in self.forms[weight])
        changes = (tensor_of(rows_of(one, is_shared=weight != name)) - value for one in solutions)
        return np.array([float((gradient * change).square().sum()) for change in changes])


def _by_channel(layer: Layer, values: "Tensor") -> np.ndarray:
    """Sums over positions: (channels,)."""
    axis = 1 if layer.is_convolution else values.ndim - 1
    return np.asarray(values.movedim(axis, 0).flatten(1).sum(1).double().numpy())


def _rounded(value: "Tensor", gradient: "Tensor", ranges: Sequence[QuantParams]) -> np.ndarray:
    """(g · δ)² of an activation for each range."""
    from ptqc.execution.torch.quantized import fake_quantize

    return np.array([float((gradient * (fake_quantize(value, one) - value)).sum()) ** 2 for one in ranges])


def _ranges(candidates: WeightCandidates, site: ScaleGroup) -> Sequence[QuantParams]:
    """The range of a site, and others for one of a single source."""
    return (
        candidates.ranges[site.name],
        *(candidates.other_ranges.get(site.name, ()) if len(site.sources) == 1 else ()),
    )


def _all(sweeps: _Sweeps, samples: Sequence[tuple[Feeds, Outputs]]) -> tuple[_SquareSums, int]:
    """Means over as many samples as there is time for, at least one; how many these are."""
    sizes = [sweeps.loss.size(reference, reference) for _, reference in samples]
    usual, result, done = float(np.mean(sizes)) or 1.0, _SquareSums(), 0
    numbered = ((number, *sample) for number, sample in enumerate(samples))
    candidates = sweeps.candidates
    with candidates.progress.stage("measure curvature", len(samples)) as stage:
        for one in _in_order(sweeps, numbered):
            result.add(one, sizes[done] / usual)
            done += 1
            stage.advance()
            if not candidates.deadline.leaves(0):
                break
    return result.mean(), done


def _in_order(sweeps: _Sweeps, samples: Iterator[tuple[int, Feeds, Outputs]]) -> Iterator[_SquareSums]:
    """The first sample alone: it says how much memory others take at a time."""
    first = sweeps.of(next(samples))
    yield first
    yield from in_order(sweeps.of, samples, need=lambda _: HELD * first.bytes, ahead=1)


def _of_sites(
    candidates: WeightCandidates, sums: _SquareSums, negligible: float
) -> tuple[dict[str, QuantParams], dict[str, float]]:
    """Ranges and losses: where a site loses more than what is negligible, the range that loses least."""
    ranges, losses = dict(candidates.ranges), dict[str, float]()
    for site in candidates.sites:
        reached = [0.5 * sums.sites[source] for source in site.sources if source in sums.sites]
        if not reached:
            continue
        loss = float(sum(squares[0] for squares in reached))
        if loss > negligible and len(site.sources) == 1:
            best = int(reached[0].argmin())
            ranges[site.name], loss = _ranges(candidates, site)[best], float(reached[0][best])
        losses[site.name] = loss
    usual = float(np.median(list(losses.values()))) if losses else 1.0
    return ranges, {site.name: losses.get(site.name, usual) for site in candidates.sites}


def _anchors(forms: Mapping[str, Sequence[Format]], sums: _SquareSums) -> Anchors:
    """Losses in the formats that were looked at, of the weights that gradients reach."""
    return {
        name: {form: 0.5 * float(square) for form, square in zip(forms[name], squares, strict=True)}
        for name, squares in sums.weights.items()
    }


def _unreached(candidates: WeightCandidates, sums: _SquareSums, anchors: Anchors) -> list[Note]:
    """What steps such as Round and ArgMax let no gradient through to, although it may matter."""
    rounded = dict.fromkeys(name for (name, _), error in candidates.errors.items() if error)
    weights = [name for name in rounded if name not in anchors]
    sites = [site.name for site in candidates.sites if sums.sites.keys().isdisjoint(site.sources)]
    if not weights and not sites:
        return []
    counts = len(weights), len(candidates.weights), len(sites), len(candidates.sites)
    return [Note(MeasureCurvature.name, (weights or sites)[0], UNREACHED.format(*counts), Level.WARNING)]
