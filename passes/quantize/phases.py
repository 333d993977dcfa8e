"""What a compile knows after each of its deciding passes: one frozen class for each, which adds to the one before.

AnalysisInput → CalibrationStats (calibrate) → WeightCandidates (solve-weights) → Sensitivities (measure-sensitivity) →
Analysis (choose-activations). With a plan, whose formats are allocated, it is an AnalyzedPlan; the parameters of the
plan are QuantizedParameters, and a lowered graph has both. A function that takes one of them says with its type which
passes have to have run before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.formats import ActivationParams, Format, QuantParams
from ptqc.ir.layers import Layer, Weight, find_layers, find_weights
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import Candidates, QuantizedParameters, QuantizedWeight
from ptqc.ir.sites import QuantizableOp, ScaleGroup, find_kernels, find_sites, useful_sites
from ptqc.losses import Kinds
from ptqc.passes.quantize.moments import Moments
from ptqc.solver.integer_program import Proof
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import SILENT, Progress


@dataclass(frozen=True)
class AnalysisInput:
    """A normalized model by role, and the two splits of the calibration set.

    tuning, held_back: disjoint samples; decisions are fitted on the first and accepted on the second. powers: whether
    scales are to be powers of two. symmetric: whether codes of activations are to lie around their zero point. fused:
    whether biases make up for zero points of others where they can.
    """

    model: ir.Model
    layers: tuple[Layer, ...]
    weights: tuple[Weight, ...]
    kernels: tuple[QuantizableOp, ...]
    sites: tuple[ScaleGroup, ...]
    tuning: Samples
    held_back: Samples
    seed: int = 0
    powers: bool = False
    symmetric: bool = False
    fused: bool = False
    progress: Progress = SILENT
    deadline: Deadline = field(default_factory=Deadline)

    @classmethod
    def of(
        cls,
        model: ir.Model,
        tuning: Samples,
        held_back: Samples,
        *,
        closed: bool = False,
        fused: bool = False,
        **settings: Any,
    ) -> Self:
        """The roles found in a normalized model. closed: layers on codes give codes. fused: see `find_kernels`."""
        layers = find_layers(model)
        kernels = find_kernels(model, layers, closed=closed, fused=fused)
        sites = useful_sites(find_sites(model, kernels, fused=fused), kernels, {layer.name for layer in layers})
        weights = find_weights(model, layers)
        roles = tuple(layers), tuple(weights), tuple(kernels), tuple(sites)
        return cls(model, *roles, tuning, held_back, fused=fused, **settings)

    @classmethod
    def after(cls, earlier: "AnalysisInput", **results: Any) -> Self:
        """What was known before, and what a pass found since."""
        return cls(**{each.name: getattr(earlier, each.name) for each in fields(earlier)} | results)

    @property
    def roles(self) -> Plan:
        """A plan in which nothing is decided yet."""
        return Plan(self.layers, self.weights, self.kernels, self.sites, {}, {})

    @property
    def site_of(self) -> Mapping[str, ScaleGroup]:
        """Tensor name -> its site."""
        return {tensor: site for site in self.sites for tensor in site.tensors}

    @property
    def fitted_layers(self) -> tuple[Layer, ...]:
        """The layers whose weights are rounded to fit what they read; a weight in several roles is a table."""
        fitted = {weight.name for weight in self.weights if weight.layers}
        return tuple(layer for layer in self.layers if layer.weight in fitted)

    def tensors_of(self, sites: Collection[str]) -> dict[str, None]:
        """The tensors of sites given by name, in the order of the graph."""
        return {tensor: None for site in self.sites if site.name in sites for tensor in site.tensors}


class Later(Protocol):
    """Second moments that are observed when their block of weights is solved."""

    @property
    def blocks(self) -> Sequence[Sequence[str]]:
        """Names of weights, in the order in which they are observed."""

    def observe(self, names: Iterable[str], observed: "CalibrationStats", deadline: Deadline) -> bool:
        """Add the moments of a block, if they are not there; whether there was time for all samples and columns."""


@dataclass(frozen=True)
class CalibrationStats(AnalysisInput):
    """A setting, with what the calibration set showed of activations.

    ranges: by site name; other_ranges: others that may lose less. moments, held_moments: of what weights multiply, by
    weight name, on the two splits; weights of equal readings share one object, and one that is solved lets go of all
    but its means. macs: multiply-accumulates of a sample, by kernel (node) name. is_thinned: whether there was no time
    for all samples and columns. later: moments that are not observed yet; None where all are.
    """

    ranges: Mapping[str, QuantParams] = field(default_factory=dict)
    other_ranges: Mapping[str, tuple[QuantParams, ...]] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    held_moments: dict[str, Moments] = field(default_factory=dict)
    macs: Mapping[str, int] = field(default_factory=dict)
    is_thinned: bool = False
    later: Later | None = None

    def release(self, weights: Iterable[str]) -> None:
        """Let go of the second moments of weights that are solved; of one split their means stay.

        Squares that weights share are freed with the last of these.
        """
        for name in weights:
            self.held_moments.pop(name, None)
            if name in self.moments:
                self.moments[name] = self.moments[name].of_mean()


@dataclass(frozen=True)
class WeightCandidates(CalibrationStats):
    """What was observed, with every weight in every format and the errors on held-back columns.

    errors: relative to the power of the layer's output.
    """

    solutions: Mapping[tuple[str, Format], QuantizedWeight] = field(default_factory=dict)
    errors: Mapping[tuple[str, Format], float] = field(default_factory=dict)

    @classmethod
    def with_candidates(cls, observed: CalibrationStats, several: Iterable[Candidates]) -> Self:
        """What was observed, and candidates of its weights."""
        result = [
            (name, *candidate) for candidates in several for name, each in candidates.items() for candidate in each
        ]
        solutions = {(name, solution.form): solution for name, solution, _ in result}
        errors = {(name, solution.form): error for name, solution, error in result}
        return cls.after(observed, solutions=solutions, errors=errors)

    @property
    def candidates(self) -> Candidates:
        """Solutions and errors by weight."""
        candidates: dict[str, list[tuple[QuantizedWeight, float]]] = {}
        for (name, form), solution in self.solutions.items():
            candidates.setdefault(name, []).append((solution, self.errors[name, form]))
        return candidates


@dataclass(frozen=True)
class Sensitivities(WeightCandidates):
    """What was solved, with what every candidate and every 8-bit activation loses at the outputs.

    kinds: by output, how it is compared with the float model's. site_losses: by site name. weight_losses: by weight
    and format. loss_unit: of all of them.
    """

    kinds: Kinds = field(default_factory=dict)
    site_losses: Mapping[str, float] = field(default_factory=dict)
    weight_losses: Mapping[tuple[str, Format], float] = field(default_factory=dict)
    loss_unit: str = ""


@dataclass(frozen=True)
class FlashCosts:
    """What weights take of a microcontroller's flash, and the most that those of a plan may take together.

    bytes: of a weight in a format. functions: what unpacks it then, by name. once: bytes of these functions.
    """

    bytes: Mapping[tuple[str, Format], int]
    functions: Mapping[tuple[str, Format], str]
    once: Mapping[str, int]
    limit: int

    def of(self, formats: Mapping[str, Format]) -> int:
        """Bytes of all weights in these formats, with the functions that unpack them."""
        used = {self.functions[each] for each in formats.items() if each in self.functions}
        return sum(self.bytes.get(each, 0) for each in formats.items()) + sum(self.once.get(name, 0) for name in used)


@dataclass(frozen=True)
class Analysis(Sensitivities):
    """What was assessed, with the activations that are rounded.

    activations: by site name; the others stay float32. activation_loss: measured with all of them rounded and float
    weights. proof: of activations that were chosen together with formats for the weights. weight_memory: the most that
    `Candidate.memory` of all weights may add up to; None: anything. flash: where that of a microcontroller is limited.
    draws: the reconstructions that are tried; None: all that the pipeline has.
    """

    activations: Mapping[str, ActivationParams] = field(default_factory=dict)
    activation_loss: float = 0.0
    proof: Proof | None = None
    weight_memory: int | None = None
    flash: FlashCosts | None = None
    draws: tuple[int, ...] | None = None

    @property
    def undecided(self) -> Plan:
        """A plan with the activations that were chosen, in which no weight has a format yet."""
        return replace(self.roles, activations=self.activations)


@dataclass(frozen=True)
class AnalyzedPlan:
    """Decisions, and the plan that follows from them and from the formats that were allocated."""

    analysis: Analysis
    plan: Plan

    @property
    def model(self) -> ir.Model:
        """The float model."""
        return self.analysis.model


@dataclass(frozen=True)
class TunablePlan(AnalyzedPlan):
    """A plan with numbers that may become better."""

    tuned: QuantizedParameters


@dataclass(frozen=True)
class PlanWithParameters:
    """A float model, a plan for it, and the plan's numbers: what a quantized graph is made of."""

    model: ir.Model
    plan: Plan
    tuned: QuantizedParameters
