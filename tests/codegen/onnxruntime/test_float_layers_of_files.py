"""Layers in float between codes compute with the weights that the plan gives them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiling import Measured, measured_model, proto, samples, weight

from ptqc.codegen.onnxruntime import export
from ptqc.codegen.onnxruntime.verify import optimized as optimized_by_onnxruntime
from ptqc.codegen.onnxruntime.verify import verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent

# A weight in two roles is no layer's, so that its layers stay in float between those on integers.
PRODUCTS = """g (float[N,24] x) => (float[N,8] y) {
    h = Gemm(x, w1) r = Relu(h)
    a = Gemm(r, w) ar = Relu(a)
    b = Gemm(ar, w2) br = Relu(b)
    c = Gemm<transB=1>(br, w) cr = Relu(c)
    y = Gemm(cr, w3)
}"""
CONVOLUTIONS = """g (float[N,4,6,6] x) => (float[N,8,2,2] y) {
    h = Conv(x, w1) r = Relu(h)
    a = Conv(r, w) ar = Relu(a)
    b = Conv(ar, w2) br = MaxPool<kernel_shape=[2,2]>(b)
    c = Conv<group=2>(br, w) cr = Relu(c)
    y = Conv(cr, w3)
}"""
NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    "products": (PRODUCTS, (24,), {"w1": (24, 32), "w": (32, 48), "w2": (48, 48), "w3": (32, 8)}),
    "convolutions": (
        CONVOLUTIONS,
        (4, 6, 6),
        {"w1": (12, 4, 3, 3), "w": (16, 12, 1, 1), "w2": (24, 16, 1, 1), "w3": (8, 16, 2, 2)},
    ),
}


@pytest.fixture(params=NETWORKS)
def measured(request: pytest.FixtureRequest, tmp_path: Path) -> Measured:
    graph, x, shapes = NETWORKS[request.param]
    weights = {name: weight(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    weights["w"][0] *= 30  # one scale for all channels is far too coarse for the others
    return measured_model(proto(graph, **weights), samples(*x, count=24), tmp_path, activations="integer", bits=(7,))


def outputs(file: onnx.ModelProto, x: np.ndarray, *, optimized: bool) -> np.ndarray:
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(file.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_onnxruntime_does_not_round_their_weights_again(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does without the Max, where it loads the file by default."""
    fitted, x = measured.fit(), np.concatenate([feeds["x"] for feeds in measured.feeds])
    assert {"a", "c"}.isdisjoint(fitted.plan.integer)
    file = fitted.exported.proto
    exact = outputs(file, x, optimized=False)
    gap = np.abs(outputs(file, x, optimized=True) - exact).max()
    assert gap < 1e-4 * np.abs(exact).max()
    counts = [node.op_type for node in optimized_by_onnxruntime(file).node].count("Max")
    assert counts == 2
    verify(fitted.exported, fitted.lowered, Intent(measured.model, fitted.plan, fitted.tuned), measured.feeds, None)
    monkeypatch.setattr(export, "with_float_layers", lambda lowered, nodes: nodes)  # noqa: ARG005
    plain = export.export(fitted.lowered, measured.model).proto
    assert np.abs(outputs(plain, x, optimized=True) - exact).max() > 1e-2 * np.abs(exact).max()


def test_layers_with_a_float_side_are_read_as_they_are(tmp_path: Path) -> None:
    graph = "g (float[N,24] x) => (float[N,8] y) { s = Sin(x) h = Gemm(s, w1) t = Tanh(h) y = Gemm(t, w2) }"
    model = proto(graph, w1=weight(24, 32), w2=weight(32, 8))
    fitted = measured_model(model, samples(24, count=24), tmp_path, activations="float", bits=(7,)).fit()
    assert all(node.op_type != "Max" for node in fitted.exported.proto.graph.node)
