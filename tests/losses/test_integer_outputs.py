"""Models whose outputs are integers: pictures and labels."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from compiling import compiled, proto, weight
from graphs import noise
from mostly_slow import mostly_slow
from outputs import fitted, inputs, kinds, loss

from ptqc.execution.onnxruntime import run
from ptqc.losses.labels import RATE, Labels
from ptqc.losses.maps import Map

LABELS = "g (float[N,3,8,8] x) => (int64[N,8,8] y) { a = Conv(x, w) y = ArgMax<axis=1,keepdims=0>(a) }"
PICTURE = """g (float[N,3,8,8] x) => (uint8[N,3,8,8] y) {
    a = Conv(x, w) b = Mul(a, s) c = Add(b, m) d = Clip(c, zero, top) e = Round(d) y = Cast<to=2>(e)
}"""
SHADES = {
    "w": weight(3, 3, 1, 1),
    "s": np.array(40, np.float32),
    "m": np.array(128, np.float32),
    "zero": np.array(0, np.float32),
    "top": np.array(255, np.float32),
}


def test_labels_are_equal_or_not() -> None:
    (kind,) = kinds(LABELS, inputs(1, 3, 8, 8), w=weight(5, 3, 1, 1)).values()
    assert kind == Labels()
    measure = fitted(kind, np.zeros((1, 4), np.int64))
    assert loss(measure, np.array([[0, 1, 2, 3]]), np.array([[0, 1, 2, 9]])) == pytest.approx(RATE / 4)
    assert loss(measure, np.array([[0, 1]]), np.array([[0, 1]])) == 0


def test_pictures_are_the_numbers_that_they_are() -> None:
    """Differences of unsigned bytes are no overflows."""
    (kind,) = kinds(PICTURE, inputs(1, 3, 8, 8), **SHADES).values()
    assert isinstance(kind, Map)
    values = np.arange(192, dtype=np.uint8).reshape(1, 3, 8, 8)
    measure = fitted(kind, values)
    up, down = loss(measure, values, values + np.uint8(1)), loss(measure, values + np.uint8(1), values)
    assert up == pytest.approx(down)
    assert 0 < up < 0.01


def test_outputs_of_floats_go_first() -> None:
    both = LABELS.replace("=> (", "=> (float[N,5,8,8] a, ")
    assert list(kinds(both, inputs(1, 3, 8, 8), w=weight(5, 3, 1, 1))) == ["a"]


@pytest.mark.parametrize("output", mostly_slow(["int64[N,6,6] y", "uint8[N,24,6,6] y"], "int64[N,6,6] y"))
def test_a_file_is_judged_by_them(output: str, tmp_path: Path) -> None:
    end = "ArgMax<axis=1,keepdims=0>(a)" if "int64" in output else "Cast<to=2>(r)"
    graph = f"g (float[N,16,8,8] x) => ({output}) {{ a = Conv(x, w) b = Mul(a, s) r = Relu(b) y = {end} }}"
    model = proto(graph, w=weight(24, 16, 3, 3), s=SHADES["s"])
    result = compiled(model, noise(64, 16, 8, 8), tmp_path, "20%", bits=(2,), activations="float")
    x = noise(8, 16, 8, 8, seed=5)
    expected = run(ir.from_proto(model), {"x": x}, ["y"])["y"]
    value = np.concatenate([result.run({"x": row[None]})["y"] for row in x])
    judged = result.manifest["results"]["outputs"][0]
    if "int64" in output:
        assert judged["loss"] == pytest.approx(RATE * (value != expected).mean(), rel=0.4)
    else:
        error = (value.astype(float) - expected) ** 2
        assert judged["loss"] == pytest.approx(error.mean() / np.var(expected.astype(float)), rel=0.5)
    assert judged["loss"] > 1e-3
