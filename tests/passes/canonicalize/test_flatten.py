import numpy as np
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.canonicalize.flatten import Flatten


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([0, -1], "Flatten"), ([-1, 24], "Flatten"), ([0, 24], "Flatten"), ([-1, 12], "Reshape"), ([0, 2, 12], "Reshape")],
)
def test_constant_targets(sizes: list[int], expected: str) -> None:
    out = ", ".join("ABC"[: len(sizes)])
    model = parse(f"g (float[N, 2, 12] x) => (float[{out}] y) {{ y = Reshape(x, t) }}", t=np.array(sizes))
    rewrite(model, Flatten(), x=noise(3, 2, 12))
    assert operators(model) == [expected]


@pytest.mark.parametrize(("source", "expected"), [("x", ["Flatten"]), ("z", None)])
def test_computed_batch(source: str, expected: list[str] | None) -> None:
    graph = f"""g (float[N, 2, 6] x, float[M, 2] z) => (float[A, B] y) {{
        s = Shape({source})
        b = Gather(s, zero)
        u = Unsqueeze(b, axis)
        t = Concat <axis = 0> (u, rest)
        y = Reshape(x, t)
    }}"""
    model = parse(graph, zero=np.array(0), axis=np.array([0]), rest=np.array([-1]))
    rewrite(model, Flatten(), x=noise(3, 2, 6), z=noise(4, 2))
    assert operators(model) == (expected or ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape"])


def test_squeeze_behind_a_global_pool() -> None:
    graph = "g (float[N, 2, 3, 3] x) => (float[N, 2] y) { p = GlobalAveragePool(x)  y = Squeeze(p, axes) }"
    model = parse(graph, axes=np.array([2, 3]))
    model.graph[0].outputs[0].shape = parse(graph).graph.inputs[0].shape
    rewrite(model, Flatten(), x=noise(2, 2, 3, 3))
    assert operators(model) == ["GlobalAveragePool", "Flatten"]
