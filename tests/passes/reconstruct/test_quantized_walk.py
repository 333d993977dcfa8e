import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution.onnxruntime import Feeds, run
from ptqc.execution.tensors import Compressed
from ptqc.execution.walk import Slicer, Walk
from ptqc.formats import UINT8, QuantParams
from ptqc.ir.integer_arithmetic import fake_quantize
from ptqc.passes.reconstruct.quantized_walk import compact, fine_values, peak_bytes, run_quantized

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
        for feeds, result in zip(BATCHES, outputs, strict=True):
            for name, expected in by_hand(feeds["x"], w).items():
                np.testing.assert_allclose(result[name], expected, atol=1e-6)


def test_without_parameters_the_model_runs_as_it_is(model: ir.Model) -> None:
    for feeds, result in zip(BATCHES, run_quantized(Slicer(model), BATCHES, {}), strict=True):
        np.testing.assert_allclose(result["y"], run(model, feeds)["y"], atol=1e-6)


def test_a_compact_walk_sees_nearly_the_same(model: ir.Model) -> None:
    params = {"x": COARSE, "h": FINE}
    walk = Walk(Slicer(model), BATCHES, keep=compact(params))
    assert [array.nbytes for array in walk.values["x"]] == [2 * 4, 3 * 4]
    while walk.position < len(walk):
        walk.step()
    for result, expected in zip(walk.values["y"], run_quantized(Slicer(model), BATCHES, params), strict=True):
        np.testing.assert_allclose(np.asarray(result), expected["y"], atol=1e-4)
        assert isinstance(result, Compressed)
        assert result.nbytes == 2 * result.codes.size


def test_the_feeds_are_left_as_they_are(model: ir.Model) -> None:
    run_quantized(Slicer(model), BATCHES, {"x": COARSE})
    np.testing.assert_array_equal(BATCHES[0]["x"], noise(2, 4, seed=2))


def test_the_most_that_a_walk_holds(model: ir.Model) -> None:
    """At the end r, which is an output, and y; with the last node whole what the product made too."""
    feeds = [{"x": noise(10, 4)}]
    assert peak_bytes(Walk(Slicer(model), feeds), {"h"}) == 4 * 10 * (4 + 3)
    assert peak_bytes(Walk(Slicer(model), feeds), {"y"}) == 4 * 10 * (4 + 3 + 3)
    assert peak_bytes(Walk(Slicer(model), feeds, keep=compact({"r": FINE})), {"y"}) == 10 * (4 + 2 * 3 + 2 * 3)


ATTENTION = """g (float[N, 4, 8] q, float[N, 8, 4] k, float[N, 1, 4] unseen) => (float[N, 4, 4] y) {
    scores = MatMul(q, k)
    causal = Where(below, scores, lowest)
    masked = Add(causal, unseen)
    y = Softmax(masked)
}"""
LOGARITHM = """g (float[N, 16] x) => (float[N, 16] y, float[N, 16] d) {
    square = Mul(x, x)
    turned = Neg(square)
    power = Abs(turned)
    more = Add(power, least)
    y = Log(more)
    root = Sqrt(power)
    beside = Exp(x)
    d = Div(beside, root)
}"""


def fidelity(model: ir.Model, feeds: Feeds) -> float:
    """Of a walk in 16 bits to the float model, in dB."""
    slicer = Slicer(model)
    walk = Walk(slicer, [feeds], keep=compact({}, fine_values(slicer)))
    while walk.position < len(walk):
        walk.step()
    wanted, result = run(model, feeds)["y"], np.asarray(walk.values["y"][0])
    return float(10 * np.log10(np.square(wanted).sum() / np.square(wanted - result).sum()))


@pytest.mark.parametrize("lowest", [float(np.finfo(np.float32).min), -1e9, -65504.0, -np.inf])
def test_masked_scores_are_as_exact_as_any(lowest: float) -> None:
    """Some with a second mask upon the first, as decoders add padding to causality."""
    low = np.array(lowest, np.float32)
    model = parse(ATTENTION, below=np.tril(np.ones((4, 4), bool)), lowest=low)
    feeds = {"q": noise(3, 4, 8), "k": noise(3, 8, 4, seed=1), "unseen": np.zeros((3, 1, 4), np.float32)}
    feeds["unseen"][1:, :, 3] = low
    assert fidelity(model, feeds) > 65


def test_logarithms_of_small_numbers() -> None:
    model = parse(LOGARITHM, least=np.array(1e-10, np.float32))
    assert fine_values(Slicer(model)) >= {"more", "power", "turned", "square", "x", "root"}
    assert "beside" not in fine_values(Slicer(model))
    assert fidelity(model, {"x": noise(8, 16) ** 7}) > 65


@pytest.mark.parametrize(("exponent", "is_fine"), [(0.5, True), (-0.5, True), (2.0, False)])
def test_small_numbers_count_in_front_of_a_root(exponent: float, is_fine: bool) -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Pow(x, e) }", e=np.array(exponent, np.float32))
    assert ("x" in fine_values(Slicer(model))) == is_fine
