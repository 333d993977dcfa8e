import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import NotFinite
from ptqc.execution.finite import Finite, Flaw, flaw_of
from ptqc.execution.walk import Slicer, Walk

GRAPH = """g (float[N, 4] x) => (float[N, 4] y) {
    a = Abs(x)
    s = Mul(a, k)
    l = Log(s)
    n = Mul(l, zero)
    y = Tanh(n)
}"""


@pytest.fixture
def model() -> ir.Model:
    return parse(GRAPH, k=np.ones((1, 4), np.float32), zero=np.zeros((1, 4), np.float32))


def run(model: ir.Model, x: np.ndarray, **constants: np.ndarray) -> np.ndarray:
    slicer = Slicer(model)
    walk = Walk(slicer, [{"x": x}], constants, check=Finite(slicer, [{"x": x}]))
    while walk.position < len(walk):
        walk.step()
    return np.asarray(walk.values["y"][0])


@pytest.mark.parametrize(
    ("array", "flaw"),
    [
        (np.array([[1.0, -2.0]], np.float32), Flaw.NONE),
        (np.array([[1.0, -np.inf]], np.float32), Flaw.INFINITE),
        (np.array([-np.inf, np.nan, np.inf], np.float16), Flaw.NAN),
        (np.array([1, 2]), Flaw.NONE),
        (np.zeros((0, 3), np.float32), Flaw.NONE),
        ([np.array([np.nan])], Flaw.NONE),
    ],
)
def test_the_worst_of_an_array(array: object, flaw: Flaw) -> None:
    assert flaw_of(array) is flaw


def test_what_the_float_model_has_too_passes(model: ir.Model) -> None:
    assert np.isnan(run(model, np.array([[0, 1, 2, 0]], np.float32))).sum() == 2


@pytest.mark.parametrize("x", [noise(2, 4), np.array([[0, 1, 2, 0]], np.float32)])
def test_the_first_place_is_named(model: ir.Model, x: np.ndarray) -> None:
    with pytest.raises(NotFinite, match=r"Log 'l' is infinite in \d of \d elements"):
        run(model, x, k=np.array([[1, 0, 1, 1]], np.float32))
    with pytest.raises(NotFinite, match=r"Mul 's' is NaN in \d of \d elements"):
        run(model, x, k=np.array([[1, np.nan, 1, 1]], np.float32))
