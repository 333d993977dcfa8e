"""Gradients of a sample along directions of its outputs, and what is held meanwhile."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from graphs import noise, parse

pytest.importorskip("torch", reason="torch is not installed")

import torch

from ptqc.execution.torch.graph import Backward, TorchGraph

GRAPH = """g (float[N, 4] x, int64[N] rows) => (float[N, 2] y, float[N, 3] z, int64[N] k) {
    picked = Gather <axis = 0> (table, rows)
    s = Add(x, picked)
    h = MatMul(s, w)
    t = Tanh(h)
    y = MatMul(t, first)
    z = MatMul(t, second)
    k = ArgMax <axis = 1, keepdims = 0> (h)
}"""
CONSTANTS = {"table": noise(5, 4), "w": noise(4, 6), "first": noise(6, 2), "second": noise(6, 3)}
FEEDS = {"x": noise(2, 4), "rows": np.array([1, 3])}


def taken(*sweeps: dict[str, np.ndarray], constants: tuple[str, ...], inner: tuple[str, ...]) -> list[tuple[str, Any]]:
    result = []
    graph = TorchGraph(parse(GRAPH, **CONSTANTS))
    run = Backward(graph, FEEDS, constants, inner, lambda name, _, gradient: result.append((name, gradient.clone())))
    for directions in sweeps:
        run.along(directions)
    return result


def test_gradients_of_constants_and_inner_values() -> None:
    v, u = noise(2, 2, seed=1), noise(2, 3, seed=2)
    result = dict(taken({"y": v, "z": u}, constants=("table", "w"), inner=("x", "h", "t")))
    first, second, w = (CONSTANTS[name] for name in ("first", "second", "w"))
    s = FEEDS["x"] + CONSTANTS["table"][FEEDS["rows"]]
    t = v @ first.T + u @ second.T
    h = t * (1 - np.tanh(s @ w) ** 2)
    rows = np.zeros((5, 4), np.float32)
    rows[FEEDS["rows"]] = h @ w.T
    for name, expected in {"t": t, "h": h, "x": h @ w.T, "w": s.T @ h, "table": rows}.items():
        np.testing.assert_allclose(result[name], expected, rtol=1e-4, atol=1e-5)


def test_every_sweep_stands_alone() -> None:
    v, u = noise(2, 2, seed=1), noise(2, 3, seed=2)
    names = {"constants": ("w",), "inner": ("h",)}
    apart = [*taken({"y": v}, **names), *taken({"z": u}, **names)]
    for (name, one), (other, both) in zip(taken({"y": v}, {"z": u}, **names), apart, strict=True):
        assert name == other
        assert torch.equal(one, both)


def test_an_output_that_depends_on_nothing_wanted_gives_no_gradients() -> None:
    assert not taken({"y": noise(2, 2)}, constants=("second",), inner=("rows", "k"))


def test_inner_values_go_with_the_run() -> None:
    graph, seen = TorchGraph(parse(GRAPH, **CONSTANTS)), []
    run = Backward(graph, FEEDS, ("w",), ("h",), lambda _name, value, _gradient: seen.append(weakref.ref(value)))
    run.along({"y": noise(2, 2)})
    assert run.bytes == 4 * (8 + 8 + 8 + 12 + 12 + 4 + 6) + 8 * (2 + 2)
    del run
    gc.collect()
    assert [tuple(value.shape) for one in seen if (value := one()) is not None] == []
