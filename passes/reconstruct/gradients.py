"""Tune codes, scales and biases of the whole network towards what the float network computes inside.

Adam (Kingma, Ba 2015, arXiv 1412.6980, algorithm 1) minimizes the squared error of what blocks of layers give, relative
to its variance, over the position of every code among its levels, a factor per weight scale and an offset per bias.
Inner values as a target are the hints of FitNets (Romero et al. 2015, arXiv 1412.6550, eq. 3): every sample gives
thousands, where a classifier's scores are so few that they would be learned by heart. The held-back loss is looked at
several times on the way, and the state with the least is kept where it is lower than at the start by more than chance.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ptqc.calibration.samples import Samples
from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.torch.quantized import QuantizedGraph, tensors_of
from ptqc.execution.torch.types import tensor_of
from ptqc.formats import Coded, spread
from ptqc.formats.levels import indices
from ptqc.formats.scales import storable
from ptqc.ir.layers import bottlenecks
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.losses import Kinds, OutputLoss, Outputs
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Result
from ptqc.passes.quantize.phases import Analysis, TunablePlan
from ptqc.passes.reconstruct.gradient_steps import STEP, GradientSteps
from ptqc.passes.reconstruct.reconstruct import behind_choices
from ptqc.utils.parallel import in_order

# Codes that a gradient can move: a real position among a weight's levels, rounded to a level on the way forward.
#
# The gradient of the code passes to the position as if nothing were rounded (Esser et al. 2020, Learned step size
# quantization, arXiv 1902.08153, section 2). The position starts as far towards the float weight as leaves the code
# as it is.

FARTHEST = 0.2  # of the way to the next level: only a gradient that stays the same moves a code over ½
NEIGHBOURS = 16  # pairs among which one is rounded to: a step moves a position by little
SEARCHED = 2**16  # pairs at a time


class Latent(Protocol):
    """The codes of one weight."""

    @property
    def position(self) -> Tensor:
        """What is learned, in units of the distance between levels."""

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""


def latent(solution: QuantizedWeight, weight: np.ndarray) -> Latent:
    """The latent codes of a solution for a float weight."""
    if solution.form.by_column or solution.form.by_row or solution.form.in_pairs:
        return FixedCodes(tensor_of(solution.codes.astype(np.float32)), torch.zeros(0, requires_grad=True))
    ratio = np.asarray(weight / spread(solution.scale, weight.ndim, solution.axis), np.float32)
    return LatentPairs.of(solution, ratio) if solution.form.group == 2 else LatentCodes.of(solution, ratio)


@dataclass(frozen=True, eq=False)
class FixedCodes:
    """Codes that no gradient moves, since one alone cannot be another; scales and biases learn."""

    values: Tensor
    position: Tensor

    def rounded(self) -> Tensor:
        """The codes, float32."""
        return self.values

    def codes(self) -> Tensor:
        """The same."""
        return self.values


@dataclass(frozen=True, eq=False)
class LatentCodes:
    """levels: sorted codes that the weight may take. position: in units of their index. mask: 0 where the code is 0."""

    levels: Tensor
    position: Tensor
    mask: Tensor | None = None

    @classmethod
    def of(cls, solution: QuantizedWeight, ratio: np.ndarray) -> "LatentCodes":
        """The latent codes of a solution; ratio: weight / scale."""
        assert isinstance(solution.form, Coded)
        levels = solution.form.levels(solution.codes)
        # Zeros that are no level stay zeros, wherever their position goes.
        index = np.minimum(np.searchsorted(levels, solution.codes), len(levels) - 1)
        away = ratio - solution.codes
        neighbour = levels[np.clip(index + np.where(away > 0, 1, -1), 0, len(levels) - 1)]
        gap = np.maximum(np.abs(neighbour - levels[index]), 1)
        position = index + np.clip(away / gap, -FARTHEST, FARTHEST)
        mask = tensor_of((solution.codes != 0).astype(np.float32)) if solution.form.keeps_zeros else None
        return cls(tensor_of(levels), tensor_of(position.astype(np.float32)).requires_grad_(), mask)

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""
        index = torch.round(self.position.detach()).clamp(0, len(self.levels) - 1)
        result = self.levels[index.long()]
        return result if self.mask is None else result * self.mask

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""
        return self.rounded() + (self.position - self.position.detach())


@dataclass(eq=False)
class LatentPairs:
    """Two neighbouring codes at a time. levels (K, 2). position (pairs, 2): in units of `gap`, a typical distance.

    near (K, n): the levels nearest to each level, itself first. index (pairs): where each pair was last.
    """

    levels: Tensor
    near: Tensor
    gap: float
    shape: tuple[int, ...]
    position: Tensor
    index: Tensor

    @classmethod
    def of(cls, solution: QuantizedWeight, ratio: np.ndarray) -> "LatentPairs":
        """The latent codes of a solution; ratio: weight / scale."""
        index, levels = indices(solution.codes, 2)
        real = levels.astype(np.float32)
        distance = np.sqrt(((real[:, None] - real) ** 2).sum(-1))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
        next_one = np.sort(distance, axis=1)[:, min(1, len(levels) - 1)]
        away = ratio.reshape(-1, 2) - real[index]
        length = np.maximum(np.linalg.norm(away, axis=1), 1e-30)
        start = real[index] + away * np.minimum(1, FARTHEST * next_one[index] / length)[:, None]
        gap = float(max(next_one.mean(), 1.0))
        position = tensor_of((start / gap).astype(np.float32)).requires_grad_()
        return cls(tensor_of(real), tensor_of(near), gap, ratio.shape, position, tensor_of(index.astype(np.int64)))

    def rounded(self) -> Tensor:
        """The codes, float32, without gradient."""
        points = self.position.detach() * self.gap
        parts = zip(points.split(SEARCHED), self.index.split(SEARCHED), strict=True)
        self.index = torch.cat([self._nearest(x, index) for x, index in parts])
        return self.levels[self.index].reshape(self.shape)

    def codes(self) -> Tensor:
        """The codes, float32, with the gradient of the position."""
        moved = (self.position * self.gap).reshape(self.shape)
        return self.rounded() + (moved - moved.detach())

    def _nearest(self, points: Tensor, index: Tensor) -> Tensor:
        near = self.near[index]
        distance = (self.levels[near] - points[:, None]).square().sum(-1)
        return near.gather(1, distance.argmin(1, keepdim=True))[:, 0]


HELD_SAMPLES = 64
PROBED_SAMPLES = 8
# Samples whose gradient one thread computes; the parts are added in order, so no byte depends on the processors.
TOGETHER = 2
MOMENTA = (0.9, 0.99)
# Standard errors by which the mean held-back loss must fall.
CERTAIN = 2.0


def tune_features(options: GradientSteps, tunable: TunablePlan) -> Result[QuantizedParameters]:
    """The tuned numbers with the lowest held-back loss on the way. Raises Unsupported where torch cannot run."""
    analysis, plan, tuned = tunable.analysis, tunable.plan, tunable.tuned
    graph = QuantizedGraph(tunable.model, plan)
    held = _Held.of(graph, analysis.held_back, analysis.kinds)
    error = _Error.of(graph, _taps(tunable.model, plan, held.loss), analysis.tuning)
    best, start, notes = tuned, held(tuned), list[Note]()
    lowest, began = float(start.mean()), time.monotonic()
    with analysis.progress.stage("tune features", options.looks) as stage:
        for look, state in enumerate(_states(options, error, analysis, tuned), 1):
            result = held(state)
            if result.mean() < lowest and _is_certain(start - result):
                best, lowest = state, float(result.mean())
            stage.advance()
            if look < options.looks and not analysis.deadline.leaves((time.monotonic() - began) / look):
                notes = [out_of_time(f"{look * options.steps // options.looks} of {options.steps} gradient steps")]
                break
    if best is tuned:
        return Result(tuned, False, (_unchanged(), *notes))
    message = f"held-back loss {start.mean():.4g} before, {lowest:.4g} after, in {held.loss.unit}s"
    best = replace(best, losses=(float(start.mean()), lowest))
    return Result(best, True, (Note(STEP, "", message), *notes))


def _states(
    options: GradientSteps, error: "_Error", analysis: Analysis, tuned: QuantizedParameters
) -> Iterator[QuantizedParameters]:
    """The numbers after each part of the steps."""
    state = _State.of(error.graph, analysis, tuned)
    positions = {name: codes.position for name, codes in state.codes.items()}
    groups = ((positions, options.code_rate), (state.factors, options.scale_rate), (state.offsets, options.bias_rate))
    settings = [{"params": list(of.values()), "lr": rate} for of, rate in groups if of]
    if not settings or not error.taps:
        return
    optimizer = torch.optim.Adam(settings, betas=MOMENTA)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    draws = _draws(analysis.tuning, options.batch, analysis.seed)
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        error.add_gradient(*state.tensors(), next(draws))
        optimizer.step()
        schedule.step()
        if step * options.looks // options.steps > (step - 1) * options.looks // options.steps:
            yield state.tuned()


def _taps(model: ir.Model, plan: Plan, loss: OutputLoss) -> tuple[str, ...]:
    """The inputs of layers through which everything behind passes, and the outputs whose values all count alike.

    What a block of layers gives together is what matters (Li et al. 2021, BRECQ, arXiv 2102.05426, section 3.2). Behind
    a choice, such as that of a TopK, rows of both networks may stand for different things.
    """
    read = {layer.input for layer in plan.layers} - {value.name for value in model.graph.inputs} - behind_choices(model)
    return (
        *(name for name in bottlenecks(model) if name in read),
        *(name for name, kind in loss.kinds.items() if kind.is_target),
    )


@dataclass(frozen=True, eq=False)
class _Held:
    """The output loss on each held-back sample."""

    graph: QuantizedGraph
    batches: Sequence[Feeds]
    references: Sequence[Mapping[str, np.ndarray]]
    loss: OutputLoss

    @classmethod
    def of(cls, graph: QuantizedGraph, samples: Samples, kinds: Kinds) -> "_Held":
        batches = list(samples.some(HELD_SAMPLES).batches(PROBED_SAMPLES))
        references = [_numpy(graph.real.run(_tensors(feeds))) for feeds in batches]
        return cls(graph, batches, references, OutputLoss.of(kinds, references))

    def __call__(self, state: QuantizedParameters) -> np.ndarray:
        weights, biases = tensors_of(state)

        def run(feeds: Feeds) -> dict[str, np.ndarray]:
            with torch.no_grad():
                return _numpy(self.graph.run(_tensors(feeds), weights, biases))

        pairs = zip(self.references, in_order(run, self.batches), strict=True)
        return np.array([self.loss(*one) for reference, result in pairs for one in _one_by_one(reference, result)])


def _one_by_one(reference: Outputs, outputs: Outputs) -> Iterator[tuple[Outputs, Outputs]]:
    """Both for each sample of a batch; whole where outputs do not have one row each."""
    counts = {len(array) if array.ndim else 0 for array in reference.values()}
    if len(counts) != 1 or counts == {0}:
        yield reference, outputs
        return
    for i in range(counts.pop()):
        yield tuple({name: array[i : i + 1] for name, array in of.items()} for of in (reference, outputs))  # type: ignore[misc]


def _is_certain(gains: np.ndarray) -> bool:
    """Whether the mean of paired differences is beyond CERTAIN standard errors."""
    return bool(gains.mean() > CERTAIN * gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else False


@dataclass(frozen=True, eq=False)
class _Error:
    """Squared error of the taps, each relative to the variance of its float values."""

    graph: QuantizedGraph
    taps: tuple[str, ...]
    variance: Mapping[str, float]

    @classmethod
    def of(cls, graph: QuantizedGraph, taps: tuple[str, ...], samples: Samples) -> "_Error":
        with torch.no_grad():
            probe = graph.real.run(_tensors(next(samples.batches(PROBED_SAMPLES))), taps)
        return cls(graph, taps, {name: max(float(x.var(correction=0)), 1e-30) for name, x in probe.items()})

    def add_gradient(self, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor], samples: Samples) -> None:
        """Add the gradient of the mean error of some samples, by size, to what weights and biases were made of."""
        parts = list(samples.batches(TOGETHER))
        sizes = [sum(array.size for array in feeds.values()) for feeds in parts]
        shares = [size * len(sizes) / sum(sizes) for size in sizes]
        gradients = list(in_order(lambda feeds: self._gradient(weights, biases, feeds), parts))
        whole = [
            sum(share * one for share, one in zip(shares, of, strict=True)) / len(parts)
            for of in zip(*gradients, strict=True)
        ]
        if not all(bool(torch.isfinite(one).all()) for one in whole):
            raise Unsupported("values or gradients are NaN or infinite in places")
        torch.autograd.backward(_learned(weights, biases), whole)

    def _gradient(self, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor], feeds: Feeds) -> Sequence[Tensor]:
        """Gradients of the weights and biases that are learned, in order."""
        inputs = _tensors(feeds)
        with torch.no_grad():
            reference = self.graph.real.run(inputs, self.taps)
        weights, biases = ({name: _leaf(tensor) for name, tensor in of.items()} for of in (weights, biases))
        result = self.graph.run(inputs, weights, biases, self.taps)
        if any(result[name].shape != reference[name].shape for name in self.taps):
            raise Unsupported("the quantized network chooses another number of rows than the float model")
        errors = [(result[name] - reference[name]).square().mean() / self.variance[name] for name in self.taps]
        leaves = _learned(weights, biases)
        total = torch.stack(errors).sum()
        if not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        gradients: Sequence[Tensor] = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        return gradients


def _learned(weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]) -> list[Tensor]:
    return [tensor for of in (weights, biases) for tensor in of.values() if tensor.requires_grad]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


@dataclass(frozen=True, eq=False)
class _State:
    """What is learned: by weight its codes and the logarithm of a factor per scale, by layer an offset of the bias.

    units: by layer, what an offset of 1 is.
    """

    start: QuantizedParameters
    weights: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    codes: Mapping[str, Latent]
    factors: Mapping[str, Tensor]
    offsets: Mapping[str, Tensor]
    units: Mapping[str, float]

    @classmethod
    def of(cls, graph: QuantizedGraph, analysis: Analysis, tuned: QuantizedParameters) -> "_State":
        """Layers that keep their sign are left as they are: a step might take it from them. So are tied tables."""
        weights, biases = tensors_of(tuned)
        left = {name for layer in analysis.layers if layer.keeps_sign for name in (layer.name, layer.weight)}
        left |= {
            name for weight in analysis.weights if weight.table is not None for name in (weight.name, weight.table)
        }
        coded = {name: s for name, s in tuned.weights.items() if s.form.has_codes and name not in left}
        codes = {name: latent(s, graph.real.constants[name].numpy()) for name, s in coded.items()}
        factors = {name: torch.zeros(len(s.scale), requires_grad=True) for name, s in coded.items()}
        moved = {name: bias for name, bias in biases.items() if name not in left}
        offsets = {name: torch.zeros_like(bias, requires_grad=True) for name, bias in moved.items()}
        with torch.no_grad():
            probe = graph.run(_tensors(next(analysis.tuning.batches(PROBED_SAMPLES))), weights, biases, list(offsets))
        units = {name: float(value.std(correction=0)) for name, value in probe.items()}
        return cls(tuned, weights, biases, codes, factors, offsets, units)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and biases as they are now."""
        moved = {name: codes.codes() * self._scale(name) for name, codes in self.codes.items()}
        return {**self.weights, **moved}, {n: self.biases[n] + self.units[n] * x for n, x in self.offsets.items()}

    def _scale(self, name: str) -> Tensor:
        solution = self.start.weights[name]
        scale = tensor_of(solution.scale) * self.factors[name].exp()
        stored = tensor_of(_stored(solution, scale))  # what is stored is computed with, and learned through
        return spread(scale + (stored - scale).detach(), solution.codes.ndim, solution.axis)

    def tuned(self) -> QuantizedParameters:
        """The numbers as they are now, scales as they are stored."""
        weights = dict(self.start.weights)
        for name, codes in self.codes.items():
            old = weights[name]
            rounded = codes.rounded().numpy().astype(np.int8)
            weights[name] = QuantizedWeight(old.form, rounded, _stored(old, self._scale(name).reshape(-1)), old.axis)
        biases = {name: bias.detach().numpy().copy() for name, bias in self.tensors()[1].items()}
        return QuantizedParameters(weights, {**self.start.biases, **biases}, draw=self.start.draw)


def _stored(before: QuantizedWeight, scale: Tensor) -> np.ndarray:
    """Scales as they are stored; those that no step has changed stay, as powers of two have to."""
    result = scale.detach().numpy()
    return before.scale if np.array_equal(result, before.scale) else storable(result, np.ones_like(result))


def _unchanged() -> Note:
    return Note(STEP, "", "not kept: no significant gain on held-back samples", Level.SKIPPED)


def _draws(samples: Samples, size: int, seed: int) -> Iterator[Samples]:
    """Random batches without end, every sample once before any comes again."""
    generator = np.random.default_rng((seed, len(samples)))
    while True:
        order = generator.permutation(len(samples))
        for start in range(0, max(len(order) - size + 1, 1), size):
            yield samples.select([int(i) for i in order[start : start + size]])


def _numpy(values: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in values.items()}


def _tensors(feeds: Feeds) -> dict[str, Tensor]:
    return {name: tensor_of(array) for name, array in feeds.items()}
