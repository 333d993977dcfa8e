"""Graphs to walk through, and what they are fed."""

import numpy as np
import onnx_ir as ir
from graphs import noise, parse

from ptqc.execution.onnxruntime import Feeds

RESIDUAL = """g (float[N, 4, 6, 6] x, float[N, 4] bias) => (float[N, 3] y, float[N, 4, 6, 6] s, float[N, 4, A] t) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu(c)
    s = Add(r, x)
    unused = Tanh(s)
    g = GlobalAveragePool(s)
    f = Flatten(g)
    h = Add(f, bias)
    y = MatMul(h, v)
    t = Reshape(r, shape)
}"""
CHOICE = """g (float[N, 4] x, bool c) => (float[N, 4] y) {
    a = Mul(x, k)
    b = Neg(x)
    inner = Relu(b)
    z = If (c) <
        then_branch = then () => (float[N, 4] p) { q = Add(a, k) p = Mul(q, inner) },
        else_branch = other () => (float[N, 4] p) {
            p = If (c) <
                then_branch = deep () => (float[N, 4] d) { d = Identity(a) },
                else_branch = deeper () => (float[N, 4] e) { e = Sub(b, k) }
            >
        }
    >
    y = Abs(z)
}"""
TWO_OUTPUTS = """g (float[N, 4] x) => (float[N, 2] y, float[N, 2] first) {
    first, second = Split <axis = 1, num_outputs = 2> (x)
    n = Neg(second)
    y = Add(first, n)
}"""


def model_of(name: str) -> ir.Model:
    match name:
        case "residual":
            constants = {"w": noise(4, 4, 3, 3), "v": noise(4, 3), "shape": np.array([0, 4, -1])}
            return parse(RESIDUAL, **constants)
        case "choice":
            return parse(CHOICE, k=noise(1, 4, seed=3))
        case _:
            return parse(TWO_OUTPUTS)


def batches_of(name: str) -> list[Feeds]:
    rows = (2, 1, 3)
    match name:
        case "residual":
            return [{"x": noise(n, 4, 6, 6, seed=n), "bias": noise(n, 4, seed=n + 9)} for n in rows]
        case "choice":
            return [{"x": noise(n, 4, seed=n), "c": np.array(n > 1)} for n in rows]
        case _:
            return [{"x": noise(n, 4, seed=n)} for n in rows]


NAMES = ["residual", "choice", "two outputs"]


def close(result: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
