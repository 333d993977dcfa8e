"""What the deciding and tuning passes read and fill in: each field is set by one pass and read by later ones."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.deadline import Deadline
from ptqc.formats import ActivationParams, Format, QuantParams
from ptqc.layers import Layer, Weight, find_layers, find_weights
from ptqc.losses import Kinds
from ptqc.passes.moments import Moments
from ptqc.plan import Plan
from ptqc.progress import SILENT, Progress
from ptqc.sites import Kernel, Site, find_kernels, find_sites, useful_sites
from ptqc.solutions import Candidates, Solution


@dataclass
class Context:
    """The model by role, the two splits of the calibration set, and what has been found out so far.

    tuning, held_back: disjoint samples; decisions are fitted on the first and accepted on the second.
    """

    layers: list[Layer]
    weights: list[Weight]
    kernels: list[Kernel]
    sites: list[Site]
    tuning: Samples
    held_back: Samples
    seed: int = 0
    progress: Progress = field(default_factory=lambda: SILENT)
    deadline: Deadline = field(default_factory=Deadline)
    # calibrate
    ranges: dict[str, QuantParams] = field(default_factory=dict)  # by site name
    other_ranges: dict[str, tuple[QuantParams, ...]] = field(default_factory=dict)  # that may lose less
    moments: dict[str, Moments] = field(default_factory=dict)  # by weight name
    held_moments: dict[str, Moments] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)  # per sample, by kernel (node) name
    sample_bytes: int = 0  # of all observed activations of one sample
    is_thinned: bool = False  # whether there was no time for all samples and columns
    # solve-weights
    solutions: dict[tuple[str, Format], Solution] = field(default_factory=dict)
    errors: dict[tuple[str, Format], float] = field(default_factory=dict)  # held-back, relative to the output's power
    # measure-sensitivity
    kinds: Kinds = field(default_factory=dict)  # by output: how it is compared with the float model's
    site_losses: dict[str, float] = field(default_factory=dict)  # by site name
    weight_losses: dict[tuple[str, Format], float] = field(default_factory=dict)
    loss_unit: str = ""
    # choose-activations, choose-bfloats
    activations: dict[str, ActivationParams] = field(default_factory=dict)  # by site name; the others stay float32
    activation_loss: float = 0.0  # measured with all of them rounded and float weights

    @classmethod
    def of(cls, model: ir.Model, tuning: Samples, held_back: Samples, **settings: object) -> "Context":
        """The roles found in a normalized model."""
        layers = find_layers(model)
        kernels = find_kernels(model, layers)
        sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
        weights = find_weights(model, layers)
        return cls(layers, weights, kernels, sites, tuning, held_back, **settings)  # type: ignore[arg-type]

    @property
    def roles(self) -> Plan:
        """A plan in which nothing is decided yet."""
        return Plan(tuple(self.layers), tuple(self.weights), tuple(self.kernels), tuple(self.sites), {}, {})

    @property
    def site_of(self) -> Mapping[str, Site]:
        """Tensor name -> its site."""
        return {tensor: site for site in self.sites for tensor in site.tensors}

    def tensors_of(self, sites: Collection[str]) -> dict[str, None]:
        """The tensors of sites given by name, in the order of the graph."""
        return {tensor: None for site in self.sites if site.name in sites for tensor in site.tensors}

    @property
    def candidates(self) -> Candidates:
        """Solutions and errors by weight."""
        found: dict[str, list[tuple[Solution, float]]] = {}
        for (name, form), solution in self.solutions.items():
            found.setdefault(name, []).append((solution, self.errors[name, form]))
        return found

    def take(self, candidates: Candidates) -> None:
        """Add solutions and errors of some weights, whose second moments are not needed any more; their means are."""
        for name, several in candidates.items():
            for solution, error in several:
                self.solutions[name, solution.form] = solution
                self.errors[name, solution.form] = error
            self.held_moments.pop(name, None)
            if name in self.moments:
                self.moments[name].keep_mean()
