"""Recurrent nodes in all of their forms, and a branch that sizes decide on, as ONNX Runtime computes them."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import opened
from graphs import noise, parse
from lowering import quantized

from ptqc.codegen.cpu.target import build
from ptqc.codegen.onnxruntime.export import export
from ptqc.execution.onnxruntime import Feeds, Runner

STEPS, WIDTH, HIDDEN, WIDE = 5, 8, 6, 37
GRAPH = f"""g (float[N, S, {WIDTH}] x, float[N, {HIDDEN}] state, int64 rate)
    => (float[N, A] y, float[N, {HIDDEN}] last, float[2, N, {WIDE}] cells) {{
    turned = Transpose <perm = [1, 0, 2]> (x) first = Unsqueeze(state, zero)
    all, h = GRU <hidden_size = {HIDDEN}, linear_before_reset = 1> (turned, gru_w, gru_r, gru_b, , first)
    steps = Squeeze(all, one) both, hs, cells = LSTM <hidden_size = {WIDE}, direction = "bidirectional"> (
        steps, lstm_w, lstm_r, lstm_b)
    joined = Transpose <perm = [0, 2, 1, 3]> (both) pairs = Reshape(joined, shape)
    back = GRU <hidden_size = {HIDDEN}, direction = "reverse"> (pairs, back_w, back_r, , , start)
    flat_back = Squeeze(back, one)
    , end = RNN <hidden_size = {HIDDEN}, activations = ["Relu"]> (flat_back, rnn_w, rnn_r, rnn_b)
    ended = Squeeze(end, zero) flat = MatMul(ended, m)
    sizes = Shape(flat) count = Gather(sizes, zero) is_one = Equal(count, one)
    rows = If (is_one) <then_branch = g1 () => (float[A, B] same) {{ same = Identity(flat) }},
                        else_branch = g2 () => (float[B] less) {{ less = Squeeze(flat, zero) }}>
    none = Mul(rate, naught) float_none = Cast <to = 1> (none) y = Add(rows, float_none) last = Squeeze(h, zero) }}"""


def weights(
    name: str, gates: int, width: int, hidden: int, directions: int = 1, seed: int = 0
) -> dict[str, np.ndarray]:
    return {
        f"{name}_w": noise(directions, gates * hidden, width, seed=seed, scale=0.3),
        f"{name}_r": noise(directions, gates * hidden, hidden, seed=seed + 1, scale=0.3),
        f"{name}_b": noise(directions, 2 * gates * hidden, seed=seed + 2, scale=0.3),
    }


CONSTANTS = {
    **weights("gru", 3, WIDTH, HIDDEN, seed=1),
    **weights("lstm", 4, HIDDEN, WIDE, directions=2, seed=4),
    **weights("back", 3, 2 * WIDE, HIDDEN, seed=7),
    **weights("rnn", 1, HIDDEN, HIDDEN, seed=10),
    "m": noise(HIDDEN, 5, seed=13),
    "start": noise(1, 1, HIDDEN, seed=14),
    "zero": np.array([0]),
    "one": np.array([1]),
    "shape": np.array([0, 0, -1]),
    "naught": np.array(0),
}
del CONSTANTS["back_b"]


def sample(seed: int) -> Feeds:
    state = noise(1, HIDDEN, seed=seed + 50)
    return {"x": noise(1, STEPS, WIDTH, seed=seed), "state": state, "rate": np.array(16000)}


@pytest.mark.long
def test_recurrent_nodes_with_a_branch_and_a_scalar(tmp_path: Path) -> None:
    feeds = [sample(seed) for seed in range(8)]
    network = quantized(parse(GRAPH, 22, **CONSTANTS), feeds)
    exported = export(network.lowered, network.model)
    folder = tmp_path / "cpu"
    folder.mkdir()
    native = build(network.lowered, exported, feeds, folder)
    library, runner = opened(native), Runner(exported.proto)
    assert {"gru", "lstm", "rnn"} <= set(native.document["libraries"][0]["steps"])
    for seed in range(60, 64):
        wanted, result = runner.run(sample(seed)), library.run(sample(seed))
        for name in ("y", "last", "cells"):
            np.testing.assert_allclose(result[name], wanted[name], atol=2e-5, err_msg=name)
