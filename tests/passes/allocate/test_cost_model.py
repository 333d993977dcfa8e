"""The latency model: which operators run on codes, what is converted, and how the parts add up."""

from dataclasses import replace

import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL

from ptqc.errors import UsageError
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.plan import Plan
from ptqc.ir.sites import find_kernels, find_sites
from ptqc.passes.allocate.cost_model import Network, OpLatencies

MIXED = """g (float[1,4,8,8] x) => (float[1,4,4,4] y, float[1,4,4,4] z) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    ar = Relu(a)
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(ar)
    y = Conv<pads=[1,1,1,1]>(p, w2, b2)
    z = Exp(p)
}"""


def plan_of(model: ir.Model) -> Plan:
    """A plan that quantizes every site."""
    layers = find_layers(model)
    kernels = find_kernels(model, layers)
    sites = find_sites(model, kernels)
    params = {site.name: QuantParams(UINT8, 1.0, 0) for site in sites}
    return Plan(tuple(layers), tuple(find_weights(model, layers)), tuple(kernels), tuple(sites), params, {})


def mixed() -> Network:
    weights = {"w1": noise(4, 4, 3, 3), "b1": noise(4), "w2": noise(4, 4, 3, 3), "b2": noise(4)}
    model = parse(MIXED, **weights)
    return Network.of(model, plan_of(model))


TIMES = OpLatencies(
    "a runtime",
    {"a": 100, "p": 10, "y": 100, "z": 1},
    {"a": 30, "p": 5, "y": 40},
    {"x": 0.1, "ar": 0.2, "p": 0.3, "y": 0.4},
    {"x": 0.01, "ar": 0.02, "p": 0.03, "y": 0.04},
)


def test_what_each_operator_needs() -> None:
    needed = {operator.node: operator.tensors for operator in mixed().operators}
    assert needed == {"a": ("x", "ar"), "p": ("ar", "p"), "y": ("p", "y"), "z": ()}


def test_who_makes_and_reads_each_tensor() -> None:
    edges = {edge.tensor: (edge.maker, edge.readers, edge.real) for edge in mixed().edges}
    assert edges == {
        "x": (None, ("a",), False),
        "ar": ("a", ("p",), False),
        "p": ("p", ("y",), True),
        "y": ("y", (), True),
    }


@pytest.mark.parametrize(
    ("quantized", "nanoseconds"),
    [
        ((), 211),
        (("x", "ar", "p", "y"), 30 + 5 + 40 + 1 + 0.1 + 0.03 + 0.04),
        (("x", "ar"), 30 + 10 + 100 + 1 + 0.1 + 0.02),
        (("ar", "p"), 100 + 5 + 100 + 1 + 0.2 + 0.03),
        (("p", "y"), 100 + 10 + 40 + 1 + 0.3 + 0.03 + 0.04),
        (("p",), 211 + 0.3 + 0.03),
    ],
)
def test_prediction(quantized: tuple[str, ...], nanoseconds: float) -> None:
    assert mixed().predict(TIMES, quantized) == pytest.approx(nanoseconds)


def test_times_scale() -> None:
    assert mixed().predict(TIMES.scaled(2), ("x", "ar")) == pytest.approx(2 * mixed().predict(TIMES, ("x", "ar")))


def test_times_are_read_back() -> None:
    assert OpLatencies.from_json(TIMES.to_json()) == TIMES


@pytest.mark.parametrize("document", [{}, {"runtime": "r", "floats": 3}, TIMES.to_json() | {"integers": {"a": "fast"}}])
def test_what_are_no_times_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="times of operators cannot be read"):
        OpLatencies.from_json(document)


def test_kernels_that_the_plan_does_not_put_on_integers_are_none() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    everything = plan_of(model)
    network = Network.of(model, everything)
    assert network.on_codes(everything.params) >= set(everything.integer)
    assert not Network.of(model, replace(everything, activations={})).on_codes(everything.params)
