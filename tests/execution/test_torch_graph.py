"""Graphs in torch: pieces, taps, replaced constants, hooks, gradients, memory, and what is refused."""

import weakref

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import Unsupported
from ptqc.execution.onnxruntime import Runner

pytest.importorskip("torch", reason="torch is not installed")

import torch

from ptqc.execution.torch.graph import TorchGraph, unsupported

NETWORK = """g (float[N, 3, 6, 6] x) => (float[N, 2] y) {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
    r = Relu(c)
    d = Conv <group = 4> (r, depthwise)
    s = Sigmoid(d)
    m = Mul(d, s)
    g = GlobalAveragePool(m)
    f = Flatten(g)
    y = Gemm <transB = 1> (f, dense)
}"""
UNKNOWN = """g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) {
    a = Relu(x)
    y, mask = Dropout(a)
    z = Bernoulli(a)
}"""


def network() -> ir.Model:
    constants = {"w": noise(4, 3, 3, 3), "b": noise(4), "depthwise": noise(4, 1, 1, 1), "dense": noise(2, 4)}
    return parse(NETWORK, **constants)


def images(seed: int = 1) -> "torch.Tensor":
    return torch.from_numpy(noise(5, 3, 6, 6, seed=seed))


def test_outputs_and_taps_are_those_of_onnxruntime() -> None:
    x = images()
    taps = ["r", "m", "y"]
    result = TorchGraph(network()).run({"x": x}, taps)
    expected = Runner(network(), taps).run({"x": x.numpy()}, taps)
    assert list(result) == taps
    for name in taps:
        np.testing.assert_allclose(result[name].numpy(), expected[name], rtol=1e-5, atol=1e-6)


def test_a_piece_runs_from_inner_values() -> None:
    graph = TorchGraph(network())
    whole = graph.run({"x": images()}, ["r", "m", "y"])
    seen = []
    piece = graph.run({"r": whole["r"]}, ["m"], hook=lambda name, value: seen.append(name) or value)
    assert torch.equal(piece["m"], whole["m"])
    assert seen == ["r", "d", "s", "m"]


def test_a_tap_may_be_a_feed_or_a_constant() -> None:
    graph, x = TorchGraph(network()), images()
    result = graph.run({"x": x}, ["x", "w"])
    assert result["x"] is x
    assert result["w"] is graph.constants["w"]


def test_replaced_constants_get_gradients() -> None:
    graph = TorchGraph(network())
    weight = (graph.constants["w"] * 2).requires_grad_()
    graph.run({"x": images()}, replace={"w": weight})["y"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
    assert graph.constants["w"].grad is None


def test_gradients_are_those_of_finite_differences() -> None:
    graph = TorchGraph(network())
    doubles = {name: value.double().requires_grad_() for name, value in graph.constants.items()}

    def outputs(x: "torch.Tensor", *weights: "torch.Tensor") -> "torch.Tensor":
        return graph.run({"x": x}, replace=dict(zip(doubles, weights, strict=True)))["y"]

    x = images().double().requires_grad_()
    assert torch.autograd.gradcheck(outputs, (x, *doubles.values()), fast_mode=True)


def test_readers_see_what_the_hook_returns() -> None:
    graph = TorchGraph(network())
    zeroed = graph.run({"x": images()}, ["r", "d"], hook=lambda name, value: value * 0 if name == "r" else value)
    assert not zeroed["r"].any()
    assert not zeroed["d"].any()


def test_values_are_let_go_once_nothing_reads_them() -> None:
    alive: dict[str, weakref.ref] = {}
    held: dict[str, set[str]] = {}

    def hook(name: str, value: "torch.Tensor") -> "torch.Tensor":
        held[name] = {other for other, reference in alive.items() if reference() is not None}
        alive[name] = weakref.ref(value)
        return value

    with torch.no_grad():
        TorchGraph(network()).run({"x": images()}, ["y"], hook=hook)
    assert held["s"] >= {"d"}
    assert held["m"] - {"x"} == {"d", "s"}
    assert held["g"] - {"x"} == {"m"}
    assert "m" not in held["y"]


def test_what_torch_lacks_is_named_only_where_it_is_needed() -> None:
    model = parse(UNKNOWN)
    assert [node.op_type for node in unsupported(model)] == ["Bernoulli"]
    graph, x = TorchGraph(model), torch.ones(2, 4)
    assert torch.equal(graph.run({"x": x}, ["y"])["y"], x)
    with pytest.raises(Unsupported, match=r"the Bernoulli that gives 'z' is not known; known are .*Conv"):
        graph.run({"x": x})


def test_what_torch_itself_raises_names_the_node() -> None:
    with pytest.raises(RuntimeError) as caught:
        TorchGraph(network()).run({"x": torch.ones(1, 2, 6, 6)})
    assert caught.value.__notes__ == ["in the Conv that gives 'c'"]


def test_names_are_checked() -> None:
    graph, x = TorchGraph(network()), images()
    with pytest.raises(ValueError, match=r"no values named \['q', 'p'\]"):
        graph.run({"q": x}, ["p"])
    with pytest.raises(ValueError, match=r"only constants can be replaced.*'r'"):
        graph.run({"x": x}, replace={"r": x})
    with pytest.raises(ValueError, match=r"the input 'x' is needed for \['y'\]"):
        graph.run({})
