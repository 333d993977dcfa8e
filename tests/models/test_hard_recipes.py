"""Recipes of models in which 8-bit activations and shared weights are hard: what they write, what becomes of it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled
from onnx import numpy_helper

from ptqc.execution.onnxruntime import Runner

torch = pytest.importorskip("torch", reason="recipes need torch (pip install 'ptqc[models]')")

import text_detector  # noqa: E402
import unrolled_lstm  # noqa: E402

PRODUCTS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


def rounded(model: onnx.ModelProto, bits: int = 8) -> onnx.ModelProto:
    """Every weight rounded to nearest, with a scale for each channel."""
    copy, axes, most = onnx.ModelProto(), dict[str, int](), 2 ** (bits - 1) - 1
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type in PRODUCTS:
            axes[node.input[1]] = PRODUCTS[node.op_type]
    for tensor in copy.graph.initializer:
        if tensor.name in axes:
            values = numpy_helper.to_array(tensor)
            others = tuple(axis for axis in range(values.ndim) if axis != axes[tensor.name])
            scale = np.maximum(np.abs(values).max(others, keepdims=True) / most, 1e-30)
            tensor.CopyFrom(numpy_helper.from_array((np.rint(values / scale) * scale).astype(np.float32), tensor.name))
    return copy


def decibels(model: onnx.ModelProto, other: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    real, result = (np.concatenate([x.ravel() for x in Runner(one).run(feeds).values()]) for one in (model, other))
    return float(10 * np.log10(np.square(real).sum() / np.square(real - result).sum()))


def test_the_unrolled_network_is_the_recurrent_one() -> None:
    torch.manual_seed(0)
    network, (x, _) = unrolled_lstm.Network(16), unrolled_lstm.sequences(4, np.random.default_rng(0))
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    model = unrolled_lstm.unrolled(network)
    assert sum(node.op_type in PRODUCTS for node in model.graph.node) == 189
    np.testing.assert_allclose(Runner(model).run({"x": x})["y"], expected, atol=1e-5)


@pytest.mark.slow
def test_an_unrolled_network_loses_no_more_than_by_rounding(tmp_path: Path) -> None:
    """At a size that eight bits for every weight do not fit into."""
    torch.manual_seed(0)
    model = unrolled_lstm.unrolled(unrolled_lstm.Network(64), 4)
    rng = np.random.default_rng(1)
    data, held = (unrolled_lstm.sequences(count, rng, 4)[0] for count in (64, 32))
    result = compiled(model, data, tmp_path, "30%", bits=(3, 5, 7))
    assert decibels(model, onnx.load(result.path), {"x": held}) >= decibels(model, rounded(model), {"x": held})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unrolled_lstm", "text_detector"])
def test_trained_models_lose_no_more_than_by_rounding_and_are_not_slower(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    if name == "unrolled_lstm":
        model = unrolled_lstm.unrolled(unrolled_lstm.train())
        data, held = ({"x": unrolled_lstm.sequences(128, rng)[0]} for _ in range(2))
    else:
        text_detector.EXPORT.write(text_detector.train(), tmp_path / "trained.onnx")
        model = onnx.load(tmp_path / "trained.onnx")
        data, held = ({"image": text_detector.pages(count, rng)[0]} for count in (128, 64))
    result = compiled(model, data, tmp_path, "25%")
    assert decibels(model, onnx.load(result.path), held) >= decibels(model, rounded(model), held)
    assert result.times["latency"] is None or result.times["latency"]["high"] >= 1
