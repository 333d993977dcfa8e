"""Analyses of tiny models: calibrated, with candidates for their weights and the losses of these."""

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.samples import collect
from ptqc.execution.onnxruntime import Feeds
from ptqc.passes.quantize.calibrate import Calibrate
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity
from ptqc.passes.quantize.phases import AnalysisInput, Sensitivities
from ptqc.passes.quantize.solve_weights import SolveWeights


def measured(model: ir.Model, feeds: list[Feeds], folder: Path, bits: tuple[int, ...] = (2, 3, 4, 8)) -> Sensitivities:
    samples = replace(collect(feeds, input_specs(model), folder, 10_000), batchable=True)
    observed = Calibrate().apply(AnalysisInput.of(model, samples[:16], samples[16:])).output
    return MeasureSensitivity().apply(SolveWeights(bits).apply(observed).output).output
