"""Times of operators: what is executed is what the latency model counts."""

from pathlib import Path

import numpy as np
import pytest
from compiling import Measured, measured_model, proto, samples, weight

from ptqc.execution import speed
from ptqc.ir.sites import useful_sites
from ptqc.passes.allocate.constraints import clocks
from ptqc.passes.allocate.constraints.clocks import any_plan, measure_times, network_of, quantized_subject
from ptqc.passes.allocate.problem import packed, table_parameters
from ptqc.utils.progress import SILENT


@pytest.mark.parametrize("seed", range(4))
def test_executed_conversions_are_the_predicted_ones(
    measured: Measured, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "PROFILE_ROUNDS", (1, 1))
    context, rng = measured.context, np.random.default_rng(seed)
    some = [site for site in context.sites if rng.random() < 0.7]
    kept = useful_sites(some, context.kernels, {layer.name for layer in context.layers})
    plan = any_plan(context, measured.options, {site.name: context.ranges[site.name] for site in kept})
    lowered, exported = packed(context, plan, table_parameters(context, plan.formats))
    (result,) = speed.profile([quantized_subject(lowered, exported, plan, measured.feeds[0])], 0.01)
    network = network_of(context)
    operators = {operator.node for operator in network.operators}
    assert set(result.charges) - operators == {
        (what, tensor)
        for what in ("quantize", "dequantize")
        for tensor, ns in network.conversion_times(_counting(network, what), plan.params).items()
        if ns
    }
    layers = {layer.name for layer in context.layers}
    assert layers <= set(result.charges)
    assert {name for name in network.on_codes(plan.params) if name in layers} == layers & set(plan.integer)


def _counting(network: clocks.Network, what: str) -> clocks.OpLatencies:
    """Times in which only conversions of one kind take any."""
    ones = {edge.tensor: 1.0 for edge in network.edges}
    columns = {"quantize": ones, "dequantize": {}} if what == "quantize" else {"quantize": {}, "dequantize": ones}
    return clocks.OpLatencies("", {}, {}, columns["quantize"], columns["dequantize"])


def test_every_operator_that_takes_time_gets_one(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "SECONDS", 0.01)
    result = measure_times(measured.context, measured.options, SILENT)
    layers = {layer.name for layer in measured.context.layers}
    assert layers <= result.floats.keys()
    assert layers <= result.integers.keys()
    assert {"x", "ar", "br", "cr"} <= result.quantize.keys() & result.dequantize.keys()
    assert result == clocks.OpLatencies.from_json(result.to_json())


def test_a_table_of_codes_is_charged_to_its_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the conversions that it would need in float are timed on a file without tables."""
    monkeypatch.setattr(clocks, "SECONDS", 0.01)
    graph = "g (float[N,8,32,32] x) => (float[N,8,32,32] y) { a = Conv(x, w, b) m = Mish(a) y = Conv(m, w, b) }"
    model = proto(graph, w=weight(8, 8, 1, 1), b=weight(8))
    result = measured_model(model, samples(8, 32, 32, count=16), tmp_path, activations="integer", bits=(7,))
    measured = measure_times(result.context, result.options, SILENT)
    assert {"a", "m", "y"} == measured.integers.keys()
    assert {"a", "m"} <= measured.quantize.keys() & measured.dequantize.keys()
