"""Samples are joined only where the model gives for each what it gives for that sample alone."""

from pathlib import Path

import numpy as np
import pytest
from graphs import parse

from ptqc.calibration.inputs import input_specs
from ptqc.calibration.joining import takes_batches
from ptqc.calibration.samples import collect
from ptqc.execution.onnxruntime import Runner

LAYER = np.random.default_rng(0).standard_normal((8, 4), np.float32)
ROWS = np.random.default_rng(1).standard_normal((6, 8), np.float32)
GRAPHS = {
    "a layer": ("g (float[N,8] x) => (float[N,4] y) { y = MatMul(x, w) }", True),
    "classes": ("g (float[N,8] x) => (int64[N] y) { a = MatMul(x, w) y = ArgMax<axis=1, keepdims=0>(a) }", True),
    "axes without names": ("g (float[?,8] x) => (float[?,4] y) { y = MatMul(x, w) }", True),
    "a fixed batch": ("g (float[1,8] x) => (float[1,4] y) { y = MatMul(x, w) }", False),
    "a fixed output": ("g (float[N,8] x) => (float[1,4] y) { y = MatMul(x, w) }", False),
    "an input without axes": (
        "g (float[N,8] x, float s) => (float[N,4] y) { a = Mul(x, s) y = MatMul(a, w) }",
        False,
    ),
    "normalized over the batch": (
        "g (float[N,8] x) => (float[N,4] y) { m = ReduceMean<keepdims=1>(x, axis) a = Sub(x, m) y = MatMul(a, w) }",
        False,
    ),
    "the largest of the batch": (
        "g (float[N,8] x) => (int64[M] y) { a = MatMul(x, w) y = ArgMax<axis=0, keepdims=0>(a) }",
        False,
    ),
    "compared with each other": (
        "g (float[N,8] x) => (float[N,M] y) { t = Transpose<perm=[1,0]>(x) y = MatMul(x, t) }",
        False,
    ),
    "a batch of one in a constant": (
        "g (float[N,8] x) => (float[N,K] y) { y = Reshape(x, one) }",
        False,
    ),
    "what may be empty": (
        "g (float[N,8] x) => (int64[K,2] y) { b = Greater(x, large) i = NonZero(b) y = Transpose<perm=[1,0]>(i) }",
        False,
    ),
}
CONSTANTS = {"w": LAYER, "axis": np.array([0]), "one": np.array([1, -1]), "large": np.array(99, np.float32)}


def taken(graph: str, rows: list[np.ndarray], folder: Path) -> bool:
    model = parse(graph, **CONSTANTS)
    more = {"s": np.float32(2)} if "float s" in graph else {}
    samples = collect([{"x": row, **more} for row in rows], input_specs(model), folder, 100)
    return takes_batches(model, Runner(model), samples)


@pytest.mark.parametrize(("graph", "expected"), GRAPHS.values(), ids=[name.replace(" ", "-") for name in GRAPHS])
def test_it_takes_samples_of_one_shape_together(graph: str, expected: bool, tmp_path: Path) -> None:
    assert taken(graph, [row[None] for row in ROWS], tmp_path) is expected


def test_two_samples_that_differ_are_compared(tmp_path: Path) -> None:
    graph, _ = GRAPHS["normalized over the batch"]
    assert not taken(graph, [ROWS[:1], ROWS[:1], ROWS[1:2]], tmp_path)


@pytest.mark.parametrize("lengths", [(3, 4, 5), (3,), (4, 4)])
def test_nothing_is_joined_where_no_two_samples_fit_or_differ(lengths: tuple[int, ...], tmp_path: Path) -> None:
    graph = "g (float[N,L] x) => (float[N,L] y) { y = Relu(x) }"
    assert not taken(graph, [np.ones((1, length), np.float32) for length in lengths], tmp_path)


def test_samples_of_several_rows(tmp_path: Path) -> None:
    graph, _ = GRAPHS["a layer"]
    assert taken(graph, [ROWS[:2], ROWS[2:5]], tmp_path)


def test_rotations_that_are_kept_for_a_batch_of_one(tmp_path: Path) -> None:
    """As in language models of opset 23: each sample runs, two together do not."""
    angles = {"c": np.ones((1, 5, 4), np.float32), "s": np.zeros((1, 5, 4), np.float32)}
    model = parse("g (float[N,2,5,8] x) => (float[N,2,5,8] y) { y = RotaryEmbedding(x, c, s) }", 23, **angles)
    samples = collect(list(ROWS.reshape(-1, 1, 2, 1, 8).repeat(5, 3)), input_specs(model), tmp_path, 100)
    assert not takes_batches(model, Runner(model), samples)
