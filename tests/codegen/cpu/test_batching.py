"""Networks that move, merge or lack the batch axis: each run is a sample, several at once only where that is sound."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import opened, present
from graphs import noise, parse
from lowering import quantized, samples
from together import compared, program_of

from ptqc.codegen.cpu.target import build
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.program.program import Program
from ptqc.errors import UsageError
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.runtime.library import Library

CONSTANTS = {
    "token": noise(1, 1, 12, seed=1),
    "place": noise(1, 10, 12, seed=2),
    "qkv": noise(12, 36, seed=3, scale=0.3),
    "o": noise(12, 12, seed=4, scale=0.3),
    "w": noise(6, 6, 3, 3, scale=0.2),
    "row": noise(12, seed=5),
    "gain": noise(12, seed=6) + 1,
    "split": np.array([0, 10, 3, 2, 6]),
    "flat": np.array([0, 10, 12]),
    "rows": np.array([-1, 12]),
    "back": np.array([-1, 9, 12]),
    "batch": np.array([0]),
    "second": np.array([1]),
    "rest": np.array([-1]),
    "one": np.array([1]),
    "two": np.array([2]),
    "tail": np.array([1, 12]),
    "size": np.array(2.5, np.float32),
    "first": np.array(0),
    "next": np.array(1),
    "last": np.array(2),
    "patches": np.array([-1, 2, 8, 3]),
    "planes": np.array([-1, 6, 8, 7]),
    "doubled": np.array([2, 1, 1]),
}
CLASS_TOKEN = """
    n = Shape <start = 0, end = 1> (x) s = Concat <axis = 0> (n, tail) t = Expand(token, s)
    c = Concat <axis = 1> (t, x) p = Add(c, place) """
ATTENTION = """
    l = LayerNormalization(p, gain) a = MatMul(l, qkv) b = Reshape(a, split) d = Transpose <perm = [2, 0, 3, 1, 4]> (b)
    q = Gather <axis = 0> (d, first) k = Gather <axis = 0> (d, next) v = Gather <axis = 0> (d, last)
    kt = Transpose <perm = [0, 1, 3, 2]> (k) e = MatMul(q, kt) f = Div(e, size) g = Softmax(f) h = MatMul(g, v)
    i = Transpose <perm = [0, 2, 1, 3]> (h) j = Reshape(i, flat) m = MatMul(j, o) y = Add(m, p)"""
# Body, shape of a sample, and shape of the output for one.
SOUND = {
    "class token": (CLASS_TOKEN + "y = MatMul(p, o)", (9, 12), (10, 12)),
    "attention": (CLASS_TOKEN + ATTENTION, (9, 12), (10, 12)),
    "batch merged with tokens": ("a = Reshape(x, rows) b = MatMul(a, o) c = Relu(b) y = Reshape(c, back)",
                                 (9, 12), (9, 12)),
    "patches in the batch": ("""a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a) c = Reshape(b, patches)
        d = Transpose <perm = [3, 0, 2, 1]> (c) e = Softmax(d) f = Transpose <perm = [1, 3, 2, 0]> (e)
        g = Reshape(f, planes) y = Conv <pads = [1, 1, 1, 1]> (g, w)""", (6, 8, 7), (6, 8, 7)),
    "two parts along the batch": ("""a = Unsqueeze(x, batch) b = Concat <axis = 0> (a, a) c = Tile(x, doubled)
        d, e = Split <axis = 0, num_outputs = 2> (b) f = Squeeze(e, batch) y = MatMul(f, o)""", (9, 12), (9, 12)),
}  # fmt: skip
# Whatever the samples of a batch have to do with each other, or where the axis is not there.
ALONE: dict[str, tuple[str, tuple[int, ...], tuple[int | str, ...]]] = {
    "mean over the batch": ("a = MatMul(x, o) y = ReduceMean <keepdims = 1> (a, batch)", (9, 12), ("N", 9, 12)),
    "softmax over the batch": ("a = MatMul(x, o) y = Softmax <axis = 0> (a)", (9, 12), ("N", 9, 12)),
    "the batch size as a number": ("""s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) a = MatMul(x, o)
        y = Div(a, f)""", (9, 12), ("N", 9, 12)),
    "first sample": ("a = MatMul(x, o) y = Gather <axis = 0> (a, first)", (9, 12), (9, 12)),
}  # fmt: skip
# Shape of the input, body.
WITHOUT_A_BATCH = {
    "no axis": ((), "a = Neg(x) y = Mul(a, row)"),
    "one axis": ((12,), "a = Add(x, row) b = MatMul(a, o) y = Softmax <axis = 0> (b)"),
    "a matrix": ((5, 12), "a = MatMul(x, o) t = Transpose(a) b = MatMul(t, a) y = ReduceSum <keepdims = 0> (b)"),
    "more axes": ((4, 5, 12), "a = Add(row, x) b = Relu(a) y = Concat <axis = 0> (b, x)"),
}


@dataclass(frozen=True)
class Made:
    """A network, its runs, and its library."""

    model: ir.Model
    feeds: list[Feeds]
    library: Library


def model(body: str, shape: str, output: str) -> ir.Model:
    used = {name: array for name, array in CONSTANTS.items() if f"{name})" in body or f"{name}," in body}
    return parse(f"g (float{shape} x) => (float{output} y) {{ {body} }}", **used)


def axes(sizes: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def built(made: ir.Model, feeds: list[Feeds], folder: Path) -> Made:
    low = quantized(made, feeds)
    native = build(low.lowered, export(low.lowered, low.model), feeds, folder)
    return Made(low.lowered.model, feeds, opened(native))


@pytest.mark.slow
def test_every_kernel_is_right(tmp_path: Path) -> None:
    programs: dict[str, Program] = {}

    def add(name: str, made: ir.Model, *shape: int) -> None:
        feeds = [{"x": np.asarray(feeds["x"])} for feeds in samples(*shape)]
        programs[name] = program_of(quantized(made, feeds), feeds, present()[0], tmp_path / name)

    for name, (body, shape, output) in SOUND.items():
        add(name, model(body, axes(("N", *shape)), axes(("N", *output))), 2, *shape)
    for name, (body, shape, made) in ALONE.items():
        add(name, model(body, axes(("N", *shape)), axes(made)), 1, *shape)
    for name, (shape, body) in WITHOUT_A_BATCH.items():
        add(name, model(body, axes(shape) if shape else "", ""), *shape)
    assert {name for name, program in programs.items() if not program.sizes} == set(SOUND)
    assert compared(programs, present()[0], tmp_path).wrong == {}


def test_several_samples_at_once_where_that_is_sound(tmp_path: Path) -> None:
    body, shape, output = SOUND["attention"]
    made = built(model(body, axes(("N", *shape)), axes(("N", *output))), samples(1, *shape), tmp_path)
    assert [value.shape for value in made.library.interface.inputs] == [(None, *shape)]
    batch = {"x": np.concatenate([feeds["x"] for feeds in made.feeds])}
    wanted, result = Runner(made.model).run(batch)["y"], made.library.run(batch)["y"]
    assert result.shape == wanted.shape
    assert np.square(result - wanted).mean() < 1e-3 * np.square(wanted).mean()


def test_one_run_where_samples_are_mixed(tmp_path: Path) -> None:
    body, shape, output = ALONE["mean over the batch"]
    made = built(model(body, axes(("N", *shape)), axes(output)), samples(1, *shape), tmp_path)
    feeds = made.feeds[0]
    np.testing.assert_allclose(made.library.run(feeds)["y"], Runner(made.model).run(feeds)["y"], rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"input 'x' is float32 \[2, 9, 12\]; expected float32 \[1, 9, 12\]"):
        made.library.run({"x": np.concatenate([feeds["x"], feeds["x"]])})


@pytest.mark.slow
def test_inputs_and_outputs_without_axes(tmp_path: Path) -> None:
    made = built(model("a = Add(x, row) y = ReduceSum <keepdims = 0> (a)", axes((12,)), ""), samples(12), tmp_path)
    result = made.library.run(made.feeds[0])["y"]
    assert result.shape == ()
    np.testing.assert_allclose(result, Runner(made.model).run(made.feeds[0])["y"], rtol=1e-4)
