from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution.onnxruntime import Runner
from ptqc.ir.layers import find_inner_layers
from ptqc.passes.quantize.calibrate import with_inner_inputs

IF = """g (float[N, 4] x, bool c, bool d) => (float[N, 4] y) {
    y = If(c) <
        then_branch = t () => (float[N, 4] a) {
            n = Neg(x)
            m = MatMul(n, w)
            a = If(d) <then_branch = u () => (float[N, 4] o) { p = Abs(m) o = MatMul(p, v) },
                       else_branch = e () => (float[N, 4] q) { q = Identity(m) }>
        },
        else_branch = f () => (float[N, 4] b) { n = Exp(x) b = MatMul(n, v) }>
}"""
LOOP = """g (float[N, 4] x, int64 k, bool go) => (float[N, 4] y) {
    y = Loop(k, go, x) <body = b (int64 i, bool j, float[N, 4] s) => (bool l, float[N, 4] t) {
        l = Identity(j)
        h = Tanh(s)
        t = MatMul(h, w)
    }>
}"""
SCAN = """g (float[4] x, float[T, 4] s) => (float[4] y, float[T, 4] z) {
    y, z = Scan <num_scan_inputs = 1, scan_output_axes = [0],
                 body = b (float[4] h, float[4] i) => (float[4] k, float[4] o) {
        p = MatMul(h, w)
        k = Add(p, i)
        o = Neg(k)
    }> (x, s)
}"""
W, V, X = noise(4, 4, scale=0.5), noise(4, 4, seed=1), noise(3, 4, seed=2)
TRUE, FALSE = np.array(True), np.array(False)


def shown(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the layers inside read, in order; the model's own outputs must be what they were."""
    copy, taps = with_inner_inputs(model)
    assert set(taps) == {layer.input for layer in find_inner_layers(model).values()}
    result = Runner(copy, list(taps.values())).run(dict(feeds))
    for name, array in Runner(model).run(dict(feeds)).items():
        np.testing.assert_array_equal(result[name], array)
    return [result[taps[layer.input]] for layer in find_inner_layers(model).values()]


@pytest.mark.parametrize(
    ("c", "d", "wanted"),
    [
        (TRUE, TRUE, {"w": -X, "v": np.abs(-X @ W)}),
        (TRUE, FALSE, {"w": -X}),
        (FALSE, TRUE, {"v": np.exp(X)}),
    ],
)
def test_the_branch_that_is_taken_shows_what_its_layers_read(
    c: np.ndarray, d: np.ndarray, wanted: dict[str, np.ndarray]
) -> None:
    """Branches inside branches too, and two that use one name."""
    model = parse(IF, w=W, v=V)
    names = [layer.weight for layer in find_inner_layers(model).values()]
    result = {
        name: array for name, array in zip(names, shown(model, {"x": X, "c": c, "d": d}), strict=True) if array.size
    }
    assert set(result) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(result[name], array, rtol=1e-5)


def test_a_loop_shows_every_iteration() -> None:
    (result,) = shown(parse(LOOP, w=W), {"x": X, "k": np.array(3), "go": TRUE})
    state, wanted = X, []
    for _ in range(3):
        wanted.append(np.tanh(state))
        state = wanted[-1] @ W
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_a_scan_shows_every_step() -> None:
    (result,) = shown(parse(SCAN, w=W), {"x": X[0], "s": X})
    state, wanted = X[0], []
    for row in X:
        wanted.append(state)
        state = state @ W + row
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_is() -> None:
    model = parse(IF, w=W, v=V)
    before = str(model)
    with_inner_inputs(model)
    assert str(model) == before
