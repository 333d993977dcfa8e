"""Texts of any length, with and without a cache: one library, and the integers of ONNX Runtime at every length."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import opened
from graphs import noise, parse
from lowering import quantized

from ptqc.codegen.cpu.table import Request
from ptqc.codegen.cpu.target import build
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.targets import TargetOutput
from ptqc.errors import NoKernel, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner

WIDTH, HEADS, DEPTH, ROWS = 32, 4, 8, 24
CONSTANTS = {
    **{name: noise(WIDTH, WIDTH, seed=seed, scale=0.3) for seed, name in enumerate("qkvo")},
    "up": noise(WIDTH, 2 * WIDTH, seed=5, scale=0.3),
    "down": noise(2 * WIDTH, WIDTH, seed=6, scale=0.3),
    "gain": noise(WIDTH, seed=7) + 1,
    "shift": noise(WIDTH, seed=8),
    "table": noise(ROWS, WIDTH, seed=9),
    "split": np.array([0, 0, HEADS, DEPTH]),
    "flat": np.array([0, 0, WIDTH]),
    "root": np.array(2.8, np.float32),
    "low": np.array(-1e9, np.float32),
    "zero": np.array(0),
    "one": np.array(1),
    "ones": np.array([1]),
    "outer": np.array([0, 1, 2]),
}
POSITIONS = """n = Shape <start = 1, end = 2> (x) count = Squeeze(n) places = Range(zero, count, one)
    place = Gather(table, places) """
HEADS_OF = """l = LayerNormalization(r, gain, shift) q0 = MatMul(l, q) k0 = MatMul(l, k) v0 = MatMul(l, v)
    q1 = Reshape(q0, split) k1 = Reshape(k0, split) v1 = Reshape(v0, split) q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1) v2 = Transpose <perm = [0, 2, 1, 3]> (v1) """
MIXED = """p = Softmax(masked) m = MatMul(p, v3) m1 = Transpose <perm = [0, 2, 1, 3]> (m) m2 = Reshape(m1, flat)
    w = MatMul(m2, o) r2 = Add(w, r) u = MatMul(r2, up) e = Relu(u) d = MatMul(e, down) y = Add(d, r2) """
SCORES = "kt = Transpose <perm = [0, 1, 3, 2]> (k3) s = MatMul(q2, kt) scaled = Div(s, root) "
ENCODER = (
    f"g (float[N, S, {WIDTH}] x) => (float[N, S, {WIDTH}] y) {{"
    + POSITIONS
    + "r = Add(x, place) "
    + HEADS_OF
    + "k3 = Identity(k2) v3 = Identity(v2) "
    + SCORES
    + "masked = Identity(scaled) "
    + MIXED
    + "}"
)
CACHE = f"float[N, {HEADS}, P, {DEPTH}]"
GROWN = f"float[N, {HEADS}, A, {DEPTH}]"
DECODER = (
    f"g (float[N, T, {WIDTH}] x, int64[N, A] mask, {CACHE} past_k, {CACHE} past_v)"
    f" => (float[N, T, {WIDTH}] y, {GROWN} k3, {GROWN} v3) {{ r = Identity(x) "
    + HEADS_OF
    + """k3 = Concat <axis = 2> (past_k, k2) v3 = Concat <axis = 2> (past_v, v2)
    all1 = Shape <start = 1, end = 2> (mask) all = Squeeze(all1) before1 = Shape <start = 2, end = 3> (past_k)
    before = Squeeze(before1) columns = Range(zero, all, one) rows1 = Range(before, all, one)
    rows = Unsqueeze(rows1, ones) later = Greater(columns, rows) seen0 = Cast <to = 9> (mask)
    where = Constant <value_ints = [1, 2]> () seen = Unsqueeze(seen0, where) unseen = Not(seen)
    hidden = Or(later, unseen) """
    + SCORES
    + "masked = Where(hidden, low, scaled) "
    + MIXED
    + "}"
)


def text(length: int, samples: int = 1, seed: int = 0) -> Feeds:
    return {"x": noise(samples, length, WIDTH, seed=seed)}


def continued(length: int, past: int, samples: int = 1, seed: int = 0) -> Feeds:
    mask = np.ones((samples, past + length), np.int64)
    mask[:, : (past + length) // 3] = 0
    caches = {f"past_{part}": noise(samples, HEADS, past, DEPTH, seed=seed + n + 1) for n, part in enumerate("kv")}
    return {**text(length, samples, seed), "mask": mask, **caches}


def built(body: str, feeds: list[Feeds], folder: Path, tune: str = "off") -> tuple[TargetOutput, Runner]:
    used = {name: array for name, array in CONSTANTS.items() if f"{name})" in body or f"{name}," in body}
    low = quantized(parse(body, **used), feeds)
    exported = export(low.lowered, low.model)
    folder.mkdir()
    native = build(low.lowered, exported, feeds, folder, tuning=Request.of(tune))
    return native, Runner(exported.proto)


def is_close(result: Feeds, wanted: Feeds) -> bool:
    """Codes that float parts round differently move a value by a step; the build compares kernel by kernel."""
    return all(np.square(result[n] - w).mean() <= 1e-3 * np.square(w).mean() for n, w in wanted.items())


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetOutput, Runner]:
    feeds = [text(length, seed=length) for length in (9, 7, 12)]
    return built(ENCODER, feeds, tmp_path_factory.mktemp("text") / "cpu")


@pytest.mark.long
def test_texts_of_any_length(encoder: tuple[TargetOutput, Runner]) -> None:
    native, runner = encoder
    library = opened(native)
    for length in (1, 2, ROWS, *np.random.default_rng(0).integers(3, ROWS, 4).tolist()):
        for samples in (1, 3):
            feeds = text(length, samples, seed=40 + length)
            assert is_close(library.run(feeds), runner.run(feeds))


def test_the_build_compares_integers_at_several_lengths(encoder: tuple[TargetOutput, Runner]) -> None:
    native, _ = encoder
    (report,) = native.document["libraries"]
    assert report["verification"]["integers_compared"] > 10_000
    assert report["verification"]["end_to_end_different"] == {}
    assert "fixed_sizes" not in native.document


def test_the_interface_says_what_varies(encoder: tuple[TargetOutput, Runner]) -> None:
    library = opened(encoder[0])
    (value,) = library.interface.inputs
    assert str(value) == f"float32 [N, S, {WIDTH}]"
    assert [(length.name, length.least) for length in library.interface.lengths] == [("S", 1)]
    assert [(str(limit.size), limit.most) for limit in library.interface.limits] == [("S", ROWS)]
    with pytest.raises(UsageError, match=rf"the inputs have S = {ROWS + 1}; the network takes S up to {ROWS}"):
        library.run(text(ROWS + 1))
    with pytest.raises(UsageError, match=r"the inputs have S = 0; the library takes 1 or more"):
        library.run(text(0))
    assert library.run(text(5, samples=0))["y"].shape == (0, 5, WIDTH)


@pytest.mark.slow
def test_words_behind_a_cache_of_any_length(tmp_path: Path) -> None:
    native, runner = built(DECODER, [continued(4, 7, seed=n) for n in range(3)], tmp_path / "cpu", "quick")
    assert native.document["libraries"][0]["tuned"]["kernels"] > 0
    library = opened(native)
    shapes = {value.name: str(value) for value in library.interface.outputs}
    assert shapes["k3"] == f"float32 [N, {HEADS}, P + T, {DEPTH}]"
    for length, past in ((3, 0), (1, 30), (20, 2), (5, 5)):
        for samples in (1, 2):
            feeds = continued(length, past, samples, seed=length)
            assert is_close(library.run(feeds), runner.run(feeds))
    wrong = continued(4, 7)
    wrong["mask"] = wrong["mask"][:, 1:]
    with pytest.raises(UsageError, match=r"input 'mask' is int64 \[1, 10\]; expected int64 \[N, P \+ T\] with T = 4"):
        library.run(wrong)


def test_what_windows_slide_over_has_one_size(tmp_path: Path) -> None:
    body = f"g (float[N, {WIDTH}, L] x) => (float[N, {WIDTH}, L] y) {{ y = Conv <kernel_shape = [1]> (x, o3) }}"
    weights = {"o3": noise(WIDTH, WIDTH, 1, scale=0.2)}
    feeds = [{"x": noise(1, WIDTH, 12, seed=n)} for n in range(3)]
    low = quantized(parse(body, **weights), feeds)
    native = build(low.lowered, export(low.lowered, low.model), feeds, tmp_path)
    assert "no axis that the model leaves open can vary" in native.document["fixed_sizes"]
    assert opened(native).interface.lengths == ()
    with pytest.raises(NoKernel):
        build(low.lowered, export(low.lowered, low.model), [*feeds, {"x": noise(1, WIDTH, 9)}], tmp_path)
