"""Columns of other units are brought to one size in front of the layers that read them; the function stays."""

import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.execution.onnxruntime import Runner
from ptqc.ir.nodes import initial
from ptqc.passes.base import Probed
from ptqc.passes.equalize.standardize import Standard, Standardize, can_shift, readers

UNITS = np.array([1e-3, 1.0, 50.0, 1e3, 1e5, 2.0], np.float32)
OFFSETS = np.array([0.0, 3.0, 40.0, 0.0, 3e5, 100.0], np.float32)
TWO_READERS = """g (float[N,6] x) => (float[N,4] y, float[N,3] z) {
    y = Gemm(x, w, b)
    z = Gemm<transB=1>(x, v, c)
}"""


def tables() -> ir.Model:
    w, v = noise(6, 4) / UNITS[:, None], noise(3, 6, seed=1) / UNITS
    return parse(TWO_READERS, w=w, v=v, b=noise(4, seed=2) - OFFSETS @ w, c=noise(3, seed=3) - v @ OFFSETS)


def standardized(model: ir.Model, tensor: str, shift: np.ndarray) -> ir.Model:
    copy = model.clone()
    result = Standardize({tensor: Standard(shift, 1 / UNITS.astype(np.float64))}).apply(Probed(copy, []))
    assert result.changed
    return copy


@pytest.mark.parametrize("is_shifted", [True, False])
def test_the_function_stays(is_shifted: bool) -> None:
    model, x = tables(), noise(50, 6, seed=4) * UNITS + OFFSETS
    shift = OFFSETS.astype(np.float64) if is_shifted else np.zeros(6)
    copy = standardized(model, "x", shift)
    wanted, result = Runner(model).run({"x": x}), Runner(copy).run({"x": x})
    for name, value in wanted.items():
        np.testing.assert_allclose(result[name], value, atol=1e-4 * np.abs(value).max())
    assert [node.op_type for node in copy.graph] == ["Sub"] * is_shifted + ["Mul", "Gemm", "Gemm"]
    sizes = np.abs(initial(copy, "w")).max(1)
    assert sizes.max() < 5 * sizes.min()


def test_images_with_planes_of_other_units() -> None:
    graph = "g (float[N,6,5,5] x) => (float[N,4,5,5] y) { y = Conv<pads=[1,1,1,1]>(x, w, b) }"
    units = UNITS.reshape(6, 1, 1)
    model = parse(graph, w=noise(4, 6, 3, 3) / units, b=noise(4))
    assert not can_shift(model, readers(model)["x"])
    x = noise(3, 6, 5, 5, seed=1) * units
    copy = standardized(model, "x", np.zeros(6))
    np.testing.assert_allclose(Runner(copy).run({"x": x})["y"], Runner(model).run({"x": x})["y"], atol=1e-4)


def test_what_is_moved_on_the_way_counts_and_what_is_computed_does_not() -> None:
    graph = """g (float[N,2,3] x, float[N,6] t) => (float[N,4] y, float[N,4] z) {
        f = Flatten(x)
        y = Gemm(f, w, b)
        r = Relu(t)
        z = Gemm(r, v, b)
    }"""
    model = parse(graph, w=noise(6, 4), v=noise(6, 4, seed=1), b=noise(4))
    assert list(readers(model)) == ["f"]
    assert not can_shift(model, readers(model)["f"])  # the bias is shared
