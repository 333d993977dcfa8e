"""A float model quantized the plainest way: ranges from what was seen, weights rounded, biases kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ptqc import grids
from ptqc.calibration.ranges import affine_params
from ptqc.execute.onnxruntime import Feeds, Runner, session_options
from ptqc.execute.walk import Slicer
from ptqc.formats import UINT8, Format, QuantParams, integer
from ptqc.layers import Weight, find_layers, find_weights
from ptqc.lowered import Lowered
from ptqc.operators import constant
from ptqc.passes.lower import Lower
from ptqc.passes.quantized_walk import run_quantized
from ptqc.passes.solve_weights import palette
from ptqc.plan import Plan
from ptqc.sites import find_kernels, find_sites, useful_sites
from ptqc.solutions import Solution, Tuned

EIGHT = integer(8)
NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True)
class Quantized:
    """A model with a plan, the plan's numbers, and the graph that they lower to."""

    model: ir.Model
    plan: Plan
    tuned: Tuned
    lowered: Lowered

    def run(self, feeds: Feeds, *, optimize: bool = True) -> dict[str, np.ndarray]:
        """Outputs of the lowered graph."""
        return Runner(self.lowered.model, options=session_options(optimize=optimize)).run(feeds)

    def simulate(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs of the float graph with every source tensor and weight rounded."""
        params = {
            s: self.plan.activations[site.name]
            for site in self.plan.sites
            for s in site.sources
            if site.name in self.plan.activations
        }
        weights = {name: solution.weight for name, solution in self.tuned.weights.items()}
        return run_quantized(Slicer(self.model), [feeds], params, weights)[0]


def quantized(
    model: ir.Model,
    samples: Sequence[Feeds],
    *,
    forms: Mapping[str, Format] | Format = EIGHT,
    keep_float: Callable[[str], bool] = lambda _site: False,
    params: Mapping[str, QuantParams] | None = None,
) -> Quantized:
    """Lower a model with all useful sites quantized but those kept float.

    forms: of all weights, or by name (others 8 bit). params: of some sites; of the others from the samples.
    """
    layers = find_layers(model)
    kernels = find_kernels(model, layers)
    weights = find_weights(model, layers)
    sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
    chosen = [site for site in sites if not keep_float(site.name)]
    activations = {**observed(model, samples, chosen), **(params or {})}
    formats = {w.name: forms if isinstance(forms, Format) else forms.get(w.name, EIGHT) for w in weights}
    plan = Plan(tuple(layers), tuple(weights), tuple(kernels), tuple(sites), activations, formats)
    solutions = {weight.name: rounded(model, weight, formats[weight.name]) for weight in weights}
    biases = {layer.name: _bias(model, layer.bias) for layer in layers}
    tuned = Tuned(solutions, biases)
    return Quantized(model, plan, tuned, Lower().apply(model, plan, tuned))


def observed(model: ir.Model, samples: Sequence[Feeds], sites: Sequence[object]) -> dict[str, QuantParams]:
    """Parameters of sites from the extremes of their sources."""
    names = [source for site in sites for source in site.sources]  # type: ignore[attr-defined]
    runs = [{**feeds, **Runner(model, names).run(feeds)} for feeds in samples]
    found = {}
    for site in sites:
        values = np.concatenate([run[s].ravel() for run in runs for s in site.sources])  # type: ignore[attr-defined]
        scale, zero = affine_params(float(values.min()), float(values.max()), 8)
        found[site.name] = QuantParams(UINT8, float(scale), zero)  # type: ignore[attr-defined]
    return found


def rounded(model: ir.Model, weight: Weight, form: Format) -> Solution:
    """A weight in a format, by plain rounding."""
    values = constant(model.graph.initializers[weight.name])
    assert values is not None
    match str(form.family):
        case "int":
            return Solution(form, *grids.round_nearest(values, weight.channel_axis, form), weight.channel_axis)
        case "palette":
            found = palette(weight, values)
            assert found is not None
            return found
        case _:
            dtype = np.float16 if form.bits == 16 else np.float32
            return Solution(form, values.astype(dtype), NOTHING, weight.channel_axis)


def _bias(model: ir.Model, name: str | None) -> np.ndarray | None:
    values = constant(model.graph.initializers[name]) if name else None
    return None if values is None else values.reshape(-1)
