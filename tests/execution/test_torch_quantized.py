"""Quantized graphs in torch: the same numbers as the quantized walk, and gradients through the rounding."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution.walk import Slicer
from ptqc.formats import UINT8, Integer, QuantParams
from ptqc.ir.integer_arithmetic import fake_quantize
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.ir.sites import ScaleGroup
from ptqc.passes.reconstruct.quantized_walk import run_quantized

torch = pytest.importorskip("torch", reason="torch is not installed")

from ptqc.execution.torch import quantized  # noqa: E402
from ptqc.execution.torch.quantized import QuantizedGraph, tensors_of  # noqa: E402
from ptqc.ir.layers import find_layers, find_weights  # noqa: E402

NETWORK = """g (float[N, 3, 6, 6] x) => (float[N, 2] y) {
    c = Conv(x, w, b) r = Relu(c) d = Conv(r, v) e = Conv(d, u, b)
    p = GlobalAveragePool(e) f = Flatten(p) m = MatMul(f, k) y = Tanh(m)
}"""
FINE = QuantParams(UINT8, 0.02, 100)


@pytest.fixture
def model() -> ir.Model:
    sizes = {"w": (4, 3, 3, 3), "b": (4,), "v": (5, 4, 1, 1), "u": (4, 5, 1, 1), "k": (4, 2)}
    return parse(NETWORK, **{name: noise(*size, seed=len(name)) for name, size in sizes.items()})


def planned(model: ir.Model) -> tuple[Plan, QuantizedParameters]:
    """Three tensors rounded; biases also where the model has none, and two for the one that it shares."""
    layers = find_layers(model)
    weights = find_weights(model, layers)
    sites = tuple(ScaleGroup(name, (name,), (name,)) for name in "xrd")
    forms = {weight.name: Integer(8) for weight in weights}
    plan = Plan(tuple(layers), tuple(weights), (), sites, dict.fromkeys("xrd", FINE), forms)
    codes = {w.name: np.random.default_rng(0).integers(-90, 90, w.shape).astype(np.int8) for w in weights}
    scales = {w.name: np.linspace(0.005, 0.01, w.shape[w.channel_axis], dtype=np.float32) for w in weights}
    solutions = {w.name: QuantizedWeight(Integer(8), codes[w.name], scales[w.name], w.channel_axis) for w in weights}
    biases = {name: noise(size, seed=size) for name, size in (("c", 4), ("d", 5), ("e", 4))}
    return plan, QuantizedParameters(solutions, {**biases, "m": None})


def test_outputs_are_those_of_the_quantized_walk(model: ir.Model) -> None:
    plan, tuned = planned(model)
    x = noise(7, 3, 6, 6, seed=5)
    separate = parse(
        NETWORK.replace("(x, w, b)", "(x, w, bc)").replace("(r, v)", "(r, v, bd)").replace("(d, u, b)", "(d, u, be)"),
        **{f"b{name}": bias for name, bias in tuned.biases.items() if bias is not None},
        **{name: solution.weight for name, solution in tuned.weights.items()},
    )
    expected = run_quantized(Slicer(separate), [{"x": x}], dict.fromkeys("xrd", FINE))[0]["y"]
    result = QuantizedGraph(model, plan).run({"x": torch.from_numpy(x)}, *tensors_of(tuned))["y"]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)


def test_rounding_is_that_of_the_reference_and_passes_gradients_inside_the_range() -> None:
    x = np.linspace(-4, 6, 501, dtype=np.float32)
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    result = quantized.fake_quantize(tensor, FINE)
    np.testing.assert_array_equal(result.detach().numpy(), fake_quantize(x, FINE))
    result.sum().backward()
    assert tensor.grad is not None
    inside = (np.rint(x / np.float32(0.02)) >= -100) & (np.rint(x / np.float32(0.02)) <= 155)
    np.testing.assert_array_equal(tensor.grad.numpy(), inside.astype(np.float32))


def test_gradients_reach_weights_and_biases(model: ir.Model) -> None:
    plan, tuned = planned(model)
    weights, biases = tensors_of(tuned)
    learned = [tensor.requires_grad_() for tensor in (*weights.values(), *biases.values())]
    graph = QuantizedGraph(model, plan)
    graph.run({"x": torch.from_numpy(noise(2, 3, 6, 6))}, weights, biases)["y"].sum().backward()
    assert all(tensor.grad is not None and bool(tensor.grad.any()) for tensor in learned)
    assert not any(tensor.requires_grad for tensor in graph.real.constants.values())
