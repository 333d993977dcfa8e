"""Functions, sums, borders and concatenations become part of layers, which still give what ONNX Runtime gives."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

import numpy as np
from building import best_and_slowly_least, present
from graphs import noise, parse
from lowering import quantized, samples
from together import compared, program_of

from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.kernels.families import dense, functions
from ptqc.codegen.kernels.families.functions import Function
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program import memory, verify
from ptqc.codegen.program.program import Program

SHAPE = (2, 20, 9, 8)
HERE = present(isa.AVX512_VBMI)
SETS = pytest.mark.parametrize("chosen", best_and_slowly_least(HERE))
CONSTANTS = {
    "w": noise(20, 20, 3, 3, scale=0.08),
    "v": noise(20, 20, 1, 1, seed=1, scale=0.2),
    "u": noise(70, 20, 1, 1, seed=2, scale=0.2),
    "wide": noise(20, 40, 1, 1, seed=3, scale=0.2),
    "wider": noise(9, 40, 3, 3, seed=4, scale=0.1),
    "back": noise(20, 70, 1, 1, seed=5, scale=0.1),
    "taps": noise(20, 1, 3, 3, seed=6, scale=0.4),
    "more": noise(70, 1, 5, 3, seed=7, scale=0.4),
    "rect": noise(20 * 9 * 8, 11, seed=8, scale=0.02),
    "large": noise(20, 20, 1, 1, seed=9, scale=200),
    "scales": np.array([1, 1, 2, 1], np.float32),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "none": np.zeros(1, np.float32),
    "sixes": np.full(1, 6, np.float32),
    "one": np.array([1]),
    "rows": np.array([2]),
    "two": np.array([2]),
    "small": np.array(0.05, np.float32),
    "low": np.array(-9, np.float32),
    "last": np.array([-1]),
    "first": np.array([-99]),
    "down": np.array([-3]),
    "end": np.array([99]),
}
BORDER = "<pads = [1, 1, 1, 1]>"
SILU = "s = Sigmoid(c) m = Mul(c, s)"
# Operators that must be left, beside layers, the rounded input and the output.
GRAPHS: dict[str, tuple[str, dict[str, int]]] = {
    "a function of a layer": (f"c = Conv(x, v) {SILU} y = Conv(m, v)", {}),
    "a function of a depthwise layer": (
        f"c = Conv <group = 20, pads = [1, 1, 1, 1]> (x, taps) {SILU} y = Conv(m, v)",
        {},
    ),
    "a function of a function": ("c = Conv(x, v) a = Tanh(c) b = Sigmoid(a) d = Mul(a, b) y = Conv(d, v)", {}),
    "a function that is read twice": (
        f"c = Conv(x, v) {SILU} a = Conv(m, v) b = Conv(c, v) d = Add(a, b) y = Conv(d, v)",
        {"table": 1},
    ),
    "a sum of layers": ("a = Conv(x, v) b = Conv(x, u) d = Conv(b, back) e = Add(a, d) y = Conv(e, v)", {}),
    "a sum with what came before": ("a = Conv(x, v) r = Relu(a) b = Conv(r, v) e = Add(r, b) y = Conv(e, u)", {}),
    "a sum, the other way around": ("a = Conv(x, v) r = Relu(a) b = Conv(r, v) e = Add(b, r) y = Conv(e, u)", {}),
    "a sum behind a function": (f"a = Conv(x, v) c = Conv(a, v) {SILU} e = Add(a, m) y = Conv(e, v)", {}),
    "a function of a sum": ("a = Conv(x, v) b = Conv(a, v) c = Add(a, b) s = Sigmoid(c) y = Conv(s, v)", {}),
    "two sums": ("a = Conv(x, v) b = Conv(a, v) c = Add(a, b) d = Add(c, a) y = Conv(d, v)", {}),
    "a value plus itself": ("a = Conv(x, v) b = Add(a, a) y = Conv(b, v)", {"add": 1}),
    "a sum of wide depthwise layers": (
        "a = Conv(x, u) b = Conv <group = 70, pads = [2, 1, 2, 1]> (a, more) e = Add(b, a) y = Conv(e, back)",
        {"border": 1},
    ),
    "a border": (f"a = Conv(x, v) y = Conv {BORDER} (a, w)", {"border": 1}),
    "a border on one side": ("a = Conv(x, v) y = Conv <pads = [0, 0, 2, 1]> (a, w)", {"border": 1}),
    "with a border and without": (
        f"a = Conv(x, v) b = Conv {BORDER} (a, w) c = Conv(a, v) d = Concat <axis = 1> (b, c) y = Conv(d, wide)",
        {"border": 1, "concat": 1},
    ),
    "two borders": (
        f"a = Conv(x, v) b = Conv {BORDER} (a, w) c = Conv <pads = [1, 0, 1, 2]> (a, w) e = Concat <axis = 3> (b, c) "
        "y = Conv(e, v)",
        {"border": 1, "pad": 1, "concat": 1},
    ),
    "a concatenation with a border": (
        f"a = Conv(x, v) b = Conv {BORDER} (x, w) d = Concat <axis = 1> (a, b) y = Conv {BORDER} (d, wider)",
        {"border": 1, "concat": 1},
    ),
    "a concatenation of a value twice": (
        "a = Conv(x, v) d = Concat <axis = 1> (a, a) y = Conv(d, wide)",
        {"concat": 1},
    ),
    "a concatenation of what another layer reads in rows": (
        "a = Conv(x, v) b = Conv(a, w) e = Conv(x, v) d = Concat <axis = 1> (a, e) g = Conv(d, wide) "
        "h = MaxPool <kernel_shape = [3, 3]> (g) k = Add(b, h) y = Conv(k, v)",
        {"concat": 1, "largest": 1},
    ),
    "pools side by side": (
        "a = Conv(x, v) p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a) d = Concat <axis = 1> (a, p) "
        "y = Conv(d, wide)",
        {"largest": 1, "pad": 1, "concat": 1},
    ),
    "stretched and joined": (
        'a = Conv(x, v) q = MaxPool <kernel_shape = [2, 1], strides = [2, 1]> (a) r = Resize <mode = "nearest"> '
        "(q, , scales) t = Slice(a, one, end, rows) d = Concat <axis = 1> (r, t) y = Conv(d, wide)",
        {"largest": 1, "nearest": 1, "slice": 1, "concat": 1},
    ),
    "slices of slices": (
        "a = Conv(x, v) t = Slice(a, one, end, rows, two) b = Slice(t, last, first, last, down) "
        "c = Slice(t, one, end, last, two) d = Concat <axis = 3> (b, c) y = Conv(d, v)",
        {"slice": 2, "concat": 1},
    ),
    "a part that is an output": (
        "a = Conv(x, v) b = Conv(x, w) f = Conv(a, w) d = Concat <axis = 1> (b, f) y = Conv(d, wide)",
        {"concat": 1},
    ),
    "clipped and bordered": (f"a = Conv(x, v) q = Clip(a, zero, six) y = Conv {BORDER} (q, w)", {"border": 1}),
    "clipped by lists of one": ("a = Conv(x, v) q = Clip(a, none, sixes) y = Conv(q, v)", {}),
}
OWN = ("dense", "depthwise", "quantize", "dequantize")
HARD = "h = HardSigmoid <alpha = 0.16666667> (c) m = Mul(h, c)"
# The same in float32; with every operator but copies.
REAL_GRAPHS: dict[str, tuple[str, dict[str, int]]] = {
    "a function of a layer": ("c = Conv(x, v) r = Relu(c) y = Conv(r, v)", {"dense_float_relu": 1, "dense_float": 1}),
    "with numbers": (
        "c = Conv(x, v) r = LeakyRelu(c) q = Clip(r, zero, six) y = Neg(q)",
        {"dense_float_leakyrelu_clip_neg": 1},
    ),
    "with numbers as lists of one": (
        "c = Conv(x, v) q = Clip(c, none, sixes) y = Neg(q)",
        {"dense_float_clip_neg": 1},
    ),
    "a gate": (f"c = Conv(x, v) {SILU} y = Conv(m, v)", {"dense_float_gated_sigmoid": 1, "dense_float": 1}),
    "a gate, the other way around": (
        f"c = Conv(x, v) {HARD} y = Conv(m, v)",
        {"dense_float_gated_hardsigmoid": 1, "dense_float": 1},
    ),
    "a gate of an input": ("s = Sigmoid(x) y = Mul(x, s)", {"gated_sigmoid": 1}),
    "a gate of a gate": (
        "c = Conv(x, v) s = Sigmoid(c) m = Mul(c, s) t = Tanh(m) y = Mul(t, m)",
        {"dense_float_gated_sigmoid_gated_tanh": 1},
    ),
    "a gate of a function of something else": (
        "c = Conv(x, v) d = Conv(x, u) e = Conv(d, back) s = Sigmoid(e) y = Mul(c, s)",
        {"dense_float": 2, "dense_float_sigmoid": 1, "mul_float": 1},
    ),
    "a square of a function": (
        "c = Conv(x, v) s = Sigmoid(c) y = Mul(s, s)",
        {"dense_float_sigmoid": 1, "mul_float": 1},
    ),
    "a gate whose function is read": (
        f"c = Conv(x, v) {SILU} y = Add(s, m)",
        {"dense_float": 1, "sigmoid": 1, "mul_float": 1, "add_float": 1},
    ),
    "what magnifies": ("c = Conv(x, v) y = Reciprocal(c)", {"dense_float": 1, "reciprocal": 1}),
    "what jumps": ("c = Conv(x, v) y = Floor(c)", {"dense_float": 1, "floor": 1}),
    "a steep slope": ("c = Conv(x, v) y = LeakyRelu <alpha = 3.0> (c)", {"dense_float": 1, "leakyrelu": 1}),
    "a steep gate": (
        "c = Conv(x, v) r = Softplus(c) y = Mul(c, r)",
        {"dense_float": 1, "gated_softplus": 1},
    ),
    "a gate whose layer is read": (
        f"c = Conv(x, v) {SILU} y = Add(c, m)",
        {"dense_float": 1, "gated_sigmoid": 1, "add_float": 1},
    ),
    "a gate of a depthwise layer": (
        f"c = Conv <group = 20, pads = [1, 1, 1, 1]> (x, taps) {SILU} y = Conv(m, v)",
        {"pad": 1, "depthwise_float_gated_sigmoid": 1, "dense_float": 1},
    ),
    "a border": (
        f"c = Conv(x, v) {SILU} y = Conv {BORDER} (m, w)",
        {"border": 1, "dense_float_gated_sigmoid": 1, "dense_float": 1},
    ),
    "a border of a depthwise layer": (
        "a = Conv(x, u) r = Relu(a) b = Conv <group = 70, pads = [2, 1, 2, 1]> (r, more) y = Conv(b, back)",
        {"border": 1, "dense_float_relu": 1, "depthwise_float": 1, "dense_float": 1},
    ),
    "depthwise layers one behind the other": (
        "a = Conv <group = 20, pads = [1, 1, 1, 1]> (x, taps) r = Relu(a) "
        "y = Conv <group = 20, pads = [1, 1, 1, 1], strides = [2, 2]> (r, taps)",
        {"pad": 1, "border": 1, "depthwise_float_relu": 1, "depthwise_float": 1},
    ),
    "a concatenation": (
        "a = Conv(x, v) r = Relu(a) b = Conv(x, u) d = Concat <axis = 1> (r, b) y = Relu(d)",
        {"dense_float_relu": 1, "dense_float": 1, "concat": 1, "relu": 1},
    ),
    "a concatenation with a border": (
        f"a = Conv(x, v) b = Conv {BORDER} (x, w) d = Concat <axis = 1> (a, b) y = Conv {BORDER} (d, wider)",
        {"pad": 1, "border": 1, "dense_float": 3, "concat": 1},
    ),
    "a function of a sum": (
        "c = Conv(x, v) d = Conv(x, u) e = Conv(d, back) a = Add(c, e) r = Relu(a) y = Conv(r, v)",
        {"dense_float": 3, "dense_float_add_value_relu": 1},
    ),
    "functions of a product of an input": (
        "p = Mul(x, x) n = Neg(p) q = Clip(n, zero, six) y = Exp(q)",
        {"mul_float_neg_clip": 1, "exp": 1},
    ),
    "a function of a function": ("e = Exp(x) r = Sigmoid(e) y = Relu(r)", {"exp_sigmoid_relu": 1}),
    "a function of what is rounded at one": (
        "p = Mul(x, small) a = Add(p, low) s = Softplus(a) y = Neg(s)",
        {"mul_number1_add_number1_softplus_neg": 1},
    ),
    "a limit of what is rounded at one": (
        "p = Mul(x, small) a = Add(p, low) s = Sigmoid(a) y = Clip(s, zero, six)",
        {"mul_number1_add_number1_sigmoid_clip": 1},
    ),
    "a sum that is read twice": (
        "s = Add(x, x) r = Relu(s) y = Sub(r, s)",
        {"add_float": 1, "relu": 1, "sub_float": 1},
    ),
    "a function of large sums": ("c = Conv(x, large) y = Sigmoid(c)", {"dense_float_sigmoid": 1}),
    "rows": ("f = Flatten(x) p = MatMul(f, rect) y = Relu(p)", {"reshape": 1, "dense_float_relu": 1}),
}


def model(body: str) -> ir.Model:
    used = {name: array for name, array in CONSTANTS.items() if re.search(rf"[(,] *{name} *[,)]", body)}
    return parse(f"g (float[N, 20, 9, 8] x) => (float y) {{ {body} }}", **used)


def left(program: Program) -> Counter[str]:
    """Families of kernels that are no layers, without the borders of the input."""
    steps = [step for step in program.steps if not step.inputs[0].startswith("x/")]
    return Counter(step.kernel.family for step in steps if step.kernel.family not in OWN)


@pytest.mark.slow
@SETS
def test_what_is_fused_gives_the_same_integers(chosen: Isa, tmp_path: Path) -> None:
    programs, feeds = {}, samples(*SHAPE)
    for name, (body, kept) in GRAPHS.items():
        programs[name] = program_of(quantized(model(body), feeds), feeds, chosen, tmp_path / name)
        assert left(programs[name]) == kept, name
    assert compared(programs, chosen, tmp_path).wrong == {}


@pytest.mark.slow
@SETS
def test_what_is_fused_gives_the_same_real_numbers(chosen: Isa, tmp_path: Path) -> None:
    programs, feeds = {}, samples(*SHAPE)
    for name, (body, kept) in REAL_GRAPHS.items():
        network = quantized(model(body), feeds, keep_float=lambda _site: True)
        programs[name] = program_of(network, feeds, chosen, tmp_path / name)
        families = Counter(step.kernel.family for step in programs[name].steps)
        assert {family: count for family, count in families.items() if family != "copy"} == kept, name
    assert compared(programs, chosen, tmp_path).wrong == {}


def test_negative_zero_keeps_its_sign_in_a_larger_plane(tmp_path: Path) -> None:
    feeds = samples(*SHAPE)
    body = f"c = Conv(x, v) {HARD} b = Conv(x, u) y = Concat <axis = 1> (m, b)"
    network = quantized(model(body), feeds, keep_float=lambda _site: True)
    program = program_of(network, feeds, HERE[0], tmp_path / "job")
    worker.write(program, HERE[0], tmp_path)
    loaded, negative = worker.load(tmp_path, program), 0
    for path in sorted((tmp_path / "job").glob("values-*.npz")):
        with np.load(path) as values:
            verify.compare(loaded, dict(values), verify.Compared())
            negative += int(np.count_nonzero(np.signbit(values["m"]) & (values["m"] == 0)))
    assert negative


@pytest.mark.parametrize("fault", ["order", "gate"])
def test_faults_in_functions_of_layers_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, feeds = dense.composed, samples(*SHAPE)

    def wrong(functions: Sequence[Function], *rest: Any) -> Any:
        return right(functions[::-1] if fault == "order" else [replace(f, is_gate=False) for f in functions], *rest)

    body, _ = REAL_GRAPHS["with numbers" if fault == "order" else "a gate"]
    network = quantized(model(body), feeds, keep_float=lambda _site: True)
    monkeypatch.setattr(dense, "composed", wrong)
    result = compared({"g": program_of(network, feeds, HERE[0], tmp_path / "g")}, HERE[0], tmp_path)
    assert "dense_float" in result.wrong["g"]


@pytest.mark.parametrize("kind", ["a function of a function", "functions of a product of an input"])
def test_faults_in_functions_of_other_kernels_are_found(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, feeds = functions.composed, samples(*SHAPE)

    def wrong(result: Sequence[Function], *rest: Any) -> Any:
        return right(result[:-1], *rest)

    body, _ = REAL_GRAPHS[kind]
    body = body.replace("y = Relu(r)", "y = Neg(r)")  # which changes what a sigmoid makes
    network = quantized(model(body), feeds, keep_float=lambda _: True)
    monkeypatch.setattr(functions, "composed", wrong)
    assert compared({"g": program_of(network, feeds, HERE[0], tmp_path / "g")}, HERE[0], tmp_path).wrong


def test_what_is_computed_on_the_way_is_named(tmp_path: Path) -> None:
    feeds = samples(*SHAPE)
    body, _ = REAL_GRAPHS["with numbers"]
    network = quantized(model(body), feeds, keep_float=lambda _site: True)
    (layer,) = [step for step in program_of(network, feeds, HERE[0], tmp_path / "job").steps if step.within]
    assert (layer.within, layer.output) == (("c", "r", "q"), "y")


@SETS
def test_what_is_placed_shares_memory(chosen: Isa, tmp_path: Path) -> None:
    feeds = samples(*SHAPE)
    body, _ = GRAPHS["a concatenation with a border"]
    program = program_of(quantized(model(body), feeds), feeds, chosen, tmp_path / "job")
    (joined,) = [step for step in program.steps if step.kernel.family == "concat"]
    (bordered,) = [step for step in program.steps if step.inputs == (joined.output,)]
    assert joined.placed == joined.inputs
    assert bordered.placed == (joined.output,)
    assert joined.arguments == bordered.arguments == ()
    assert {program.layouts[name].memory for name in (*joined.inputs, joined.output)} == {(40, 11, 10)}
    slots = memory.plan(program).slots
    assert len({slots[name] for name in (*joined.inputs, joined.output, bordered.output)}) == 1
