import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execute.onnxruntime import Feeds, run
from ptqc.execute.walk import Slicer, Walk
from ptqc.formats import UINT8, QuantParams
from ptqc.integer import fake_quantize
from ptqc.passes.quantized_walk import compact, peak_bytes, run_quantized

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


def test_a_compact_walk_sees_nearly_the_same(model: ir.Model) -> None:
    params = {"x": COARSE, "h": FINE}
    walk = Walk(Slicer(model), BATCHES, keep=compact(params))
    assert [array.nbytes for array in walk.values["x"]] == [2 * 4, 3 * 4]
    while walk.position < len(walk):
        walk.step()
    for found, expected in zip(walk.values["y"], run_quantized(Slicer(model), BATCHES, params), strict=True):
        np.testing.assert_allclose(np.asarray(found), expected["y"], atol=1e-4)
        assert found.nbytes == 2 * found.codes.size


def test_the_feeds_are_left_as_they_are(model: ir.Model) -> None:
    run_quantized(Slicer(model), BATCHES, {"x": COARSE})
    np.testing.assert_array_equal(BATCHES[0]["x"], noise(2, 4, seed=2))


def test_the_most_that_a_walk_holds(model: ir.Model) -> None:
    """At the end r, which is an output, and y; with the last node whole what the product made too."""
    feeds = [{"x": noise(10, 4)}]
    assert peak_bytes(Walk(Slicer(model), feeds), {"h"}) == 4 * 10 * (4 + 3)
    assert peak_bytes(Walk(Slicer(model), feeds), {"y"}) == 4 * 10 * (4 + 3 + 3)
    assert peak_bytes(Walk(Slicer(model), feeds, keep=compact({"r": FINE})), {"y"}) == 10 * (4 + 2 * 3 + 2 * 3)
