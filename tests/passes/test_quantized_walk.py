import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execute.onnxruntime import Feeds, run
from ptqc.execute.walk import Slicer
from ptqc.formats import UINT8, QuantParams
from ptqc.integer import fake_quantize
from ptqc.passes.quantized_walk import peak_bytes, quantized_walk, run_quantized

GRAPH = "g (float[N, 4] x) => (float[N, 3] y, float[N, 4] r) { r = Relu(x) h = MatMul(r, w) y = Tanh(h) }"
FINE, COARSE = QuantParams(UINT8, 0.01, 128), QuantParams(UINT8, 0.5, 10)
BATCHES: list[Feeds] = [{"x": noise(n, 4, seed=n)} for n in (2, 3)]


@pytest.fixture
def model() -> ir.Model:
    return parse(GRAPH, w=noise(4, 3))


def by_hand(x: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    r = np.maximum(fake_quantize(x, COARSE), 0)
    h = fake_quantize(r @ w, FINE)
    return {"y": fake_quantize(np.tanh(h), COARSE), "r": r}


def test_tensors_are_rounded_where_they_are_made(model: ir.Model) -> None:
    params = {"x": COARSE, "h": FINE, "y": COARSE}
    for w in (noise(4, 3), noise(4, 3, seed=1)):
        outputs = run_quantized(Slicer(model), BATCHES, params, {"w": w})
        for feeds, found in zip(BATCHES, outputs, strict=True):
            for name, expected in by_hand(feeds["x"], w).items():
                np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_without_parameters_the_model_runs_as_it_is(model: ir.Model) -> None:
    for feeds, found in zip(BATCHES, run_quantized(Slicer(model), BATCHES, {}), strict=True):
        np.testing.assert_allclose(found["y"], run(model, feeds)["y"], atol=1e-6)


def test_the_feeds_are_left_as_they_are(model: ir.Model) -> None:
    walk = quantized_walk(Slicer(model), BATCHES, {"x": COARSE})
    assert not np.array_equal(walk.values["x"][0], BATCHES[0]["x"])
    np.testing.assert_array_equal(BATCHES[0]["x"], noise(2, 4, seed=2))


def test_the_most_that_a_walk_holds(model: ir.Model) -> None:
    """At the last node: r, which is an output, what the product made, and what comes out."""
    assert peak_bytes(Slicer(model), {"x": noise(10, 4)}) == 4 * 10 * (4 + 3 + 3)
