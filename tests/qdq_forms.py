"""QDQ forms of models that were quantized the plainest way."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from graphs import parse
from lowering import CONSTANTS, RESIDUAL, Quantized, observed, quantized, samples

from ptqc.calibration.ranges import affine_params
from ptqc.codegen.foreign.qdq_form import open_outputs, qdq_model
from ptqc.codegen.onnxruntime.export import export
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.layers import find_layers
from ptqc.ir.sites import find_kernels, find_sites, useful_sites
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.quantize.phases import PlanWithParameters


def both(
    network: Quantized, feeds: list[Feeds], params: dict[str, QuantParams] | None = None, *, wide: bool = False
) -> tuple[onnx.ModelProto, list[Feeds], Mapping[str, QuantParams]]:
    """The QDQ model, what the packed file gives, and parameters of the outputs that only the QDQ model rounds.

    params: those, where they are not to be what the packed file gives. wide: see `qdq_model`.
    """
    exported = export(network.lowered, network.model)
    packed = [tensors_of(Runner(exported.proto).run(each)) for each in feeds]
    known, params = params, dict(params or {})
    for name in open_outputs(network.lowered) if known is None else ():
        values = np.concatenate([outputs[name].ravel() for outputs in packed])
        scale, zero = affine_params(float(values.min()), float(values.max()), 8)
        params[name] = QuantParams(UINT8, float(scale), zero)
    return qdq_model(network.lowered, exported, feeds[0], packed[0], params, wide=wide), packed, params


def symmetric(powers: bool) -> Quantized:
    """A residual network whose activations have the zero point 128, with powers of two as scales or without."""
    model, feeds = parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8)
    layers = find_layers(model)
    kernels = find_kernels(model, layers)
    sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
    reach = {name: max(-one.low, one.high) / 127 for name, one in observed(model, feeds, sites).items()}
    steps = {name: float(2.0 ** np.ceil(np.log2(step))) if powers else step for name, step in reach.items()}
    params = {name: QuantParams(UINT8, float(np.float32(step)), 128) for name, step in steps.items()}
    network = quantized(model, feeds, params=params)
    if not powers:
        return network
    weights = {
        name: replace(one, scale=(2.0 ** np.ceil(np.log2(one.scale))).astype(np.float32))
        for name, one in network.tuned.weights.items()
    }
    tuned = replace(network.tuned, weights=weights)
    lowered = Lower().apply(PlanWithParameters(model, network.plan, tuned)).output
    return replace(network, tuned=tuned, lowered=lowered)


def symmetric_model() -> onnx.ModelProto:
    """As the QDQ model of uint8 that forms for TensorRT and XDNA are made of."""
    return both(symmetric(powers=True), samples(1, 3, 8, 8), {"y": QuantParams(UINT8, 0.0625, 128)})[0]
