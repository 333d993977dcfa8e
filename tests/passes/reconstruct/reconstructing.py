"""Measured networks, plans and their errors, for tests of what tunes the numbers of a plan."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from lowering import array

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import Samples, collect
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.execution.walk import Slicer
from ptqc.formats import Format
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.phases import Analysis, AnalysisInput
from ptqc.passes.quantize.solve_weights import SolveWeights
from ptqc.passes.reconstruct.quantized_walk import run_quantized


def measured(model: ir.Model, folder: Path, feeds: list[Feeds], held: int = 8) -> Analysis:
    """Ranges, moments and candidates from the feeds; the last ones are held back."""
    samples: Samples = replace(collect(feeds, input_specs(model), folder, 10_000), batchable=True)
    observed = Calibrate().apply(AnalysisInput.of(model, samples[:-held], samples[-held:])).output
    return Analysis.after(SolveWeights((2, 3, 4, 8)).apply(observed).output)


def plan_of(context: Analysis, form: Format | dict[str, Format], quantize: bool = True) -> Plan:
    formats = {w.name: form if isinstance(form, Format) else form[w.name] for w in context.weights}
    roles = (tuple(context.layers), tuple(context.weights), tuple(context.kernels), tuple(context.sites))
    return Plan(*roles, dict(context.ranges) if quantize else {}, formats)


def table(context: Analysis, plan: Plan, model: ir.Model) -> QuantizedParameters:
    """The numbers that a plan has before reconstruction."""
    weights = {name: context.solutions[name, form] for name, form in plan.formats.items()}
    biases = {layer.name: array(model, layer.bias) if layer.bias else None for layer in plan.layers}
    return QuantizedParameters(weights, biases)


def outputs(model: ir.Model, plan: Plan, tuned: QuantizedParameters, feeds: list[Feeds]) -> list[dict[str, np.ndarray]]:
    """Of the float graph with rounded activations, these weights, and these biases as additions behind the layers."""
    copy = model.clone()
    for node in list(copy.graph):
        bias = tuned.biases.get(str(node.outputs[0].name))
        if bias is None:
            continue
        name = f"{node.outputs[0].name}/new bias"
        value = ir.Value(name=name, const_value=ir.tensor(bias.astype(np.float32), name=name))
        copy.graph.register_initializer(value)
        node.resize_inputs(3)
        node.replace_input_with(2, value)
    chosen = [site for site in plan.sites if site.name in plan.activations]
    params = {source: plan.activations[site.name] for site in chosen for source in site.sources}
    return run_quantized(Slicer(copy), feeds, params, {name: s.weight for name, s in tuned.weights.items()})


def error(model: ir.Model, plan: Plan, tuned: QuantizedParameters, feeds: list[Feeds]) -> float:
    real = list(map(Runner(model).run, feeds))
    result = outputs(model, plan, tuned, feeds)
    power = sum(float(np.square(a["y"]).sum()) for a in real)
    return sum(float(np.square(a["y"] - b["y"]).sum()) for a, b in zip(real, result, strict=True)) / power
