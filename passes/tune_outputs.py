"""Tune codes, scales and biases of the whole network against its float outputs.

Adam (Kingma, Ba 2015, arXiv 1412.6980, algorithm 1) minimizes the output loss of the quantized graph, without labels,
over the position of every code on its list of levels, a factor per weight scale and an offset per bias. The held-back
loss is looked at several times on the way, and the best state is kept, which may be the one at the start.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ptqc import grids
from ptqc.calibration.samples import Samples
from ptqc.execute.onnxruntime import Feeds
from ptqc.execute.torch.loss import output_loss as torch_loss
from ptqc.execute.torch.quantized import QuantizedGraph, tensors_of
from ptqc.execute.torch.types import tensor_of
from ptqc.loss import OutputLoss, output_loss
from ptqc.notes import Level, Note, out_of_time
from ptqc.passes.base import Effect
from ptqc.passes.context import Context
from ptqc.passes.latent_codes import LatentCodes
from ptqc.plan import Plan
from ptqc.solutions import Solution, Tuned

HELD_SAMPLES = 64
UNIT_SAMPLES = 8
MOMENTA = (0.9, 0.99)


@dataclass(frozen=True)
class TuneOutputs:
    """steps: updates. batch: samples of one. looks: how often the held-back loss is measured.

    Learning rates: code_rate in levels, scale_rate relative, bias_rate in deviations of the layer's output.
    """

    steps: int = 40
    batch: int = 8
    code_rate: float = 1e-2
    scale_rate: float = 1e-3
    bias_rate: float = 2e-3
    looks: int = 4
    loss: str = "auto"
    name: ClassVar[str] = "tune-outputs"
    effect: ClassVar[Effect] = Effect.TUNE

    def apply(self, model: ir.Model, context: Context, plan: Plan, tuned: Tuned) -> tuple[Tuned, list[Note]]:
        """The tuned numbers with the lowest held-back loss on the way. Raises Unsupported where torch cannot run."""
        graph = QuantizedGraph(model, plan)
        held = list(context.held_back[:HELD_SAMPLES].batches(self.batch))
        references = [_numpy(graph.real.run(_tensors(feeds))) for feeds in held]
        loss = output_loss(model, references, self.loss)

        def held_loss(state: Tuned) -> float:
            weights, biases = tensors_of(state)
            with torch.no_grad():
                found = [_numpy(graph.run(_tensors(feeds), weights, biases)) for feeds in held]
            return float(np.mean([loss(r, q) for r, q in zip(references, found, strict=True)]))

        best, start, notes = tuned, held_loss(tuned), list[Note]()
        lowest, began = start, time.monotonic()
        with context.progress.stage("tune outputs", self.looks) as stage:
            for look, state in enumerate(self._states(graph, context, tuned, loss), 1):
                if (found := held_loss(state)) < lowest:
                    best, lowest = state, found
                stage.advance()
                if look < self.looks and not context.deadline.leaves((time.monotonic() - began) / look):
                    notes = [out_of_time(f"{look * self.steps // self.looks} of {self.steps} gradient steps")]
                    break
        if best is tuned:
            return tuned, [_unchanged(), *notes]
        told = f"held-back loss {start:.4g} before, {lowest:.4g} after, in {loss.unit}s"
        return best, [Note(self.name, "", told), *notes]

    def _states(self, graph: QuantizedGraph, context: Context, tuned: Tuned, loss: OutputLoss) -> Iterator[Tuned]:
        """The numbers after each part of the steps."""
        state = _State.of(graph, context.tuning, tuned)
        positions = {name: latent.position for name, latent in state.codes.items() if latent.position.requires_grad}
        groups = ((positions, self.code_rate), (state.factors, self.scale_rate), (state.offsets, self.bias_rate))
        settings = [{"params": list(of.values()), "lr": rate} for of, rate in groups if of]
        if not settings:
            return
        optimizer = torch.optim.Adam(settings, betas=MOMENTA)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        draws = _draws(context.tuning, self.batch, context.seed)
        for step in range(1, self.steps + 1):
            optimizer.zero_grad()
            feeds = list(next(draws).batches(self.batch))
            for inputs in map(_tensors, feeds):
                with torch.no_grad():
                    reference = graph.real.run(inputs)
                objective = torch_loss(loss, reference, graph.run(inputs, *state.tensors())) / len(feeds)
                if not objective.requires_grad:
                    return  # no output depends on what is learned
                objective.backward()
            optimizer.step()
            schedule.step()
            if step * self.looks // self.steps > (step - 1) * self.looks // self.steps:
                yield state.tuned()


@dataclass(frozen=True, eq=False)
class _State:
    """What is learned: by weight its codes and the logarithm of a factor per scale, by layer an offset of the bias.

    units: by layer, what an offset of 1 is.
    """

    start: Tuned
    weights: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    codes: Mapping[str, LatentCodes]
    factors: Mapping[str, Tensor]
    offsets: Mapping[str, Tensor]
    units: Mapping[str, float]

    @classmethod
    def of(cls, graph: QuantizedGraph, samples: Samples, tuned: Tuned) -> "_State":
        weights, biases = tensors_of(tuned)
        coded = {name: s for name, s in tuned.weights.items() if s.form.has_codes}
        codes = {name: LatentCodes.of(s, graph.real.constants[name].numpy()) for name, s in coded.items()}
        factors = {name: torch.zeros(len(s.scale), requires_grad=True) for name, s in coded.items()}
        offsets = {name: torch.zeros_like(bias, requires_grad=True) for name, bias in biases.items()}
        with torch.no_grad():
            probe = graph.run(_tensors(next(samples.batches(UNIT_SAMPLES))), weights, biases, list(offsets))
        units = {name: float(value.std(correction=0)) for name, value in probe.items()}
        return cls(tuned, weights, biases, codes, factors, offsets, units)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and biases as they are now."""
        moved = {name: latent.codes() * self._scale(name) for name, latent in self.codes.items()}
        return {**self.weights, **moved}, {n: self.biases[n] + self.units[n] * x for n, x in self.offsets.items()}

    def _scale(self, name: str) -> Tensor:
        solution = self.start.weights[name]
        shape = [1] * solution.codes.ndim
        shape[solution.axis] = -1
        return (tensor_of(solution.scale) * self.factors[name].exp()).reshape(shape)

    def tuned(self) -> Tuned:
        """The numbers as they are now, scales as they are stored."""
        weights = dict(self.start.weights)
        for name, latent in self.codes.items():
            old, scale = weights[name], self._scale(name).detach().numpy().reshape(-1)
            codes = latent.rounded().numpy().astype(np.int8)
            weights[name] = Solution(old.form, codes, grids.storable(scale, np.ones_like(scale)), old.axis)
        biases = {name: bias.detach().numpy().copy() for name, bias in self.tensors()[1].items()}
        return Tuned(weights, {**self.start.biases, **biases})


def _unchanged() -> Note:
    return Note(TuneOutputs.name, "", "left as it was: the held-back loss did not fall", Level.SKIPPED)


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
