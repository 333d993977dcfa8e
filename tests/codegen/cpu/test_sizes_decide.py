"""Networks with recurrent nodes and branches, which sizes write out: the library gives what ONNX Runtime does."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import opened
from graphs import noise, parse
from lowering import quantized

from ptqc.codegen.cpu.target import build
from ptqc.codegen.onnxruntime.export import export
from ptqc.execute.onnxruntime import Feeds, Runner

STEPS, WIDTH, HIDDEN = 3, 8, 6
GRAPH = f"""g (float[N, S, {WIDTH}] x, float[N, {HIDDEN}] state, int64 rate)
    => (float[N, A] y, float[N, {HIDDEN}] last) {{
    turned = Transpose <perm = [1, 0, 2]> (x) first = Unsqueeze(state, zero)
    all, h = GRU <hidden_size = {HIDDEN}, linear_before_reset = 1> (turned, w, r, bias, , first)
    end = Gather <axis = 0> (all, minus) flat = MatMul(end, m)
    sizes = Shape(flat) count = Gather(sizes, zero) is_one = Equal(count, zero)
    rows = If (is_one) <then_branch = g1 () => (float[A, B] same) {{ same = Identity(flat) }},
                        else_branch = g2 () => (float[B] less) {{ less = Squeeze(flat, zero) }}>
    none = Mul(rate, naught) float_none = Cast <to = 1> (none) y = Add(rows, float_none) last = Squeeze(h, zero) }}"""
CONSTANTS = {
    "w": noise(1, 3 * HIDDEN, WIDTH, seed=1, scale=0.4),
    "r": noise(1, 3 * HIDDEN, HIDDEN, seed=2, scale=0.4),
    "bias": noise(1, 6 * HIDDEN, seed=3, scale=0.4),
    "m": noise(HIDDEN, 5, seed=4),
    "zero": np.array([0]),
    "minus": np.array(-1),
    "naught": np.array(0),
}


def sample(seed: int) -> Feeds:
    state = noise(1, HIDDEN, seed=seed + 50)
    return {"x": noise(1, STEPS, WIDTH, seed=seed), "state": state, "rate": np.array(16000)}


def test_a_recurrent_network_with_a_branch_and_a_scalar(tmp_path: Path) -> None:
    feeds = [sample(seed) for seed in range(8)]
    made = quantized(parse(GRAPH, **CONSTANTS), feeds)
    exported = export(made.lowered, made.model)
    folder = tmp_path / "cpu"
    folder.mkdir()
    native = build(made.lowered, exported, feeds, folder)
    library, runner = opened(native), Runner(exported.proto)
    for seed in range(60, 64):
        wanted, found = runner.run(sample(seed)), library.run(sample(seed))
        assert all(np.allclose(found[name], wanted[name], atol=1e-5) for name in ("y", "last"))
