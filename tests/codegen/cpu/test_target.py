"""A quantized graph becomes a verified library, or the node without a kernel is named."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from compiling import compiled, proto, weight
from graphs import noise, parse
from lowering import quantized, samples
from networks import FEEDS, residual

from ptqc.codegen.cpu import target
from ptqc.codegen.onnxruntime.export import export
from ptqc.errors import TargetError
from ptqc.formats import UINT8, QuantParams


@pytest.mark.processor
def test_a_residual_network_becomes_a_verified_library(tmp_path: Path) -> None:
    made, file = residual()
    first = target.build(made.lowered, file, FEEDS, tmp_path)
    verification = first.document["libraries"][0]["verification"]
    assert verification["end_to_end_different"] == {}
    assert verification["integers_compared"] > 1000
    assert json.loads(first.files["interface.json"].read_text())["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [None, 3, 8, 8]}
    ]


def test_a_node_without_a_kernel_is_named(tmp_path: Path) -> None:
    graph = "g (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y) { c = Conv(x, w) y = Hardmax(c) }"
    network = quantized(parse(graph, w=noise(4, 3, 1, 1)), FEEDS)
    with pytest.raises(TargetError, match="no kernel for Hardmax y"):
        target.build(network.lowered, export(network.lowered, network.model), FEEDS, tmp_path)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_random_networks(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    channels, size, outputs = (int(random.integers(low, high)) for low, high in ((1, 20), (1, 4), (1, 20)))
    pads = [int(n) for n in random.integers(0, size, 4)]
    stride, dilation = (int(n) for n in random.integers(1, 3, 2))
    graph = f"""g (float[N, 3, 12, 11] x) => (float[N, {outputs}] y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        r = Relu(a)
        d = Conv <pads = {pads}, strides = [{stride}, 1], dilations = [1, {dilation}]> (r, v)
        e = Conv (d, u)
        s = Add(e, d)
        m = GlobalAveragePool(s)
        f = Flatten(m)
        y = Gemm <transB = 1> (f, h)
    }}"""
    constants = {
        "w": noise(channels, 3, 3, 3, seed=seed, scale=0.4),
        "v": noise(channels, channels, size, size, seed=seed + 1, scale=0.4),
        "u": noise(channels, channels, 1, 1, seed=seed + 2, scale=0.4),
        "h": noise(outputs, channels, seed=seed + 3),
    }
    feeds = samples(2, 3, 12, 11)
    network = quantized(parse(graph, **constants), feeds)
    built = target.build(network.lowered, export(network.lowered, network.model), feeds, tmp_path)
    assert built.document["libraries"][0]["verification"]["end_to_end_different"] == {}


def test_a_rounding_tie_behind_a_float_operator_stops_nothing(tmp_path: Path) -> None:
    """Means that lie half way between two codes: ONNX Runtime sums in another order, and both roundings are right."""
    graph = """g (float[N, 16, 100] x) => (float[N, 16, 8] y) {
        a = MatMul(x, w)
        r = Add(a, x)
        m = ReduceMean(r, axes)
        y = MatMul(m, h)
    }"""
    constants = {"w": noise(100, 100, scale=0.1), "axes": np.array([-1]), "h": noise(1, 8)}
    feeds = samples(4, 16, 100)
    halves = {"r": QuantParams(UINT8, 0.037, 120), "m": QuantParams(UINT8, 0.037 / 50, 128)}
    network = quantized(parse(graph, **constants), feeds, params=halves)
    built = target.build(network.lowered, export(network.lowered, network.model), feeds, tmp_path)
    assert "m" in json.loads(built.files["kernels.json"].read_text())["names"]
    assert set(built.document["libraries"][0]["verification"]["end_to_end_different"]) <= {"m/codes"}


@pytest.mark.long
def test_normalized_rows_that_do_not_vary(tmp_path: Path) -> None:
    """Inputs of one value make such rows: ONNX Runtime gives the rounding of their mean, 300 times as large."""
    graph = """g (float[N,4,9,9] x) => (float[N,6,9,9] y) {
        a = Conv(x, w1) n = InstanceNormalization(a, s, b) r = Sin(n) y = Conv(r, w2)
    }"""
    constants = {"w1": weight(16, 4, 1, 1), "s": np.linspace(0.5, 3, 16, dtype=np.float32), "b": weight(16)}
    model = proto(graph, **constants, w2=weight(6, 16, 1, 1))
    x = 20 + 5 * noise(24, 4, 9, 9)
    result = compiled(model, x, tmp_path, None, target="cpu", bits=(7,), activations="float")
    y = result.native(threads=1).run({"x": x[:2]})["y"]
    np.testing.assert_allclose(y, result.run({"x": x[:2]})["y"], rtol=1e-3, atol=1e-3)
