"""Operators one by one, in float and between codes: what the library computes is what ONNX Runtime computes."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present
from graphs import noise, parse
from lowering import TABLE_CONSTANTS, TABLES, quantized, samples
from together import compared, program_of

from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.program.constants import Arranged, loaded_bytes
from ptqc.codegen.program.program import Program
from ptqc.errors import TargetError
from ptqc.formats import FLOAT32, Codebook, Integer
from ptqc.formats.trellis import RowTrellis
from ptqc.ir.operators import OPERATORS, registry
from ptqc.ir.operators.base import LoweredStep

IMAGE, TOKENS = (3, 6, 8, 7), (3, 9, 12)  # batches
CONV = "c = Conv <pads = [1, 1, 1, 1]> (x, w) "
CONSTANTS = {
    "w": noise(6, 6, 3, 3, scale=0.2),
    "v": noise(6, 6, 1, 1, seed=1, scale=0.4),
    "channel": noise(6, 1, 1, seed=2) + 3,
    "columns": noise(1, 1, 1, 7, seed=3),
    "all": noise(1, 6, 8, 7, seed=4),
    "slopes": np.abs(noise(6, 1, 1, seed=5)),
    "one": np.array([1]),
    "three": np.array([3]),
    "zero": np.array([0]),
    "plane_axis": np.array([2]),
    "lines": noise(6, 1, 7, seed=17),
    "rest": np.array([-1]),
    "plane": np.array([2, 3]),
    "front": np.array([1, 2]),
    "order": np.array([5, -6, 3, 3]),
    "second": np.array(1),
    "twice": np.array([1, 2, 1, 3]),
    "wider": np.array([1, 1, 1, 7]),
    "two": np.array(2, np.float32),
    "half": np.array(0.5, np.float32),
    "root": np.array(np.sqrt(2), np.float32),
    "m": noise(12, 20, scale=0.3),
    "mb": noise(20, seed=6),
    "n": noise(20, 12, seed=7, scale=0.3),
    "q": noise(12, 12, seed=8, scale=0.5),
    "k": noise(12, 12, seed=9, scale=0.5),
    "u": noise(12, 12, seed=10, scale=0.5),
    "gain": noise(12, seed=11) + 1,
    "shift": noise(12, seed=12),
    "place": noise(1, 9, 12, seed=13),
    "token": noise(9, 12, seed=14),
    "heads": np.array([0, 9, 3, 4]),
    "flat": np.array([0, 9, 12]),
    "size": np.array(2, np.float32),
}
GRAPHS = {
    "softmax of channels": CONV + "y = Softmax <axis = 1> (c)",
    "softmax of columns": CONV + "y = Softmax (c)",
    "softmax of rows": CONV + "y = LogSoftmax <axis = 2> (c)",
    "softmax of channels between codes": CONV + "s = Softmax <axis = 1> (c) y = Conv(s, v)",
    "softmax of columns between codes": CONV + "s = Softmax (c) y = Conv(s, v)",
    "mean of planes": CONV + "y = ReduceMean <keepdims = 0> (c, plane)",
    "largest channel": CONV + "y = ReduceMax (c, one)",
    "smallest of columns": CONV + "y = ReduceMin <keepdims = 0> (c, three)",
    "a shape that follows from another": CONV
    + "s = Shape <start = 0, end = 2> (c) t = Concat <axis = 0> (s, rest) r = Reshape(c, t) y = Neg(r)",
    "codes that follow from a shape, times codes": CONV
    + "s = Shape <start = 3> (c) b = Slice(columns, zero, s, three) m_ = Mul(b, c) y = Conv(m_, v)",
    "codes that follow from a shape, plus codes": CONV
    + "s = Shape <start = 3> (c) b = Slice(lines, zero, s, plane_axis) a = Add(c, b) y = Conv(a, v)",
    "a place that follows from a shape": CONV
    + "s = Shape <start = 3> (c) e = Sub(s, three) y = Slice(c, one, e, three)",
    "sum of channels and rows": CONV + "y = ReduceSum (c, front)",
    "average pool": CONV
    + "p = AveragePool <kernel_shape = [3, 2], pads = [1, 0, 2, 1], strides = [2, 1]> (c) y = Neg(p)",
    "average pool with its border": CONV
    + "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (c)",
    "average pool of codes": CONV + "p = AveragePool <kernel_shape = [3, 3], strides = [2, 2]> (c) y = Conv(p, v)",
    "average pool of two codes": CONV + "p = AveragePool <kernel_shape = [1, 2]> (c) y = Conv(p, v)",
    "padded average pool of codes": CONV
    + "p = AveragePool <kernel_shape = [2, 3], pads = [1, 1, 0, 2]> (c) y = Conv(p, v)",
    "normalized planes": CONV + "y = LayerNormalization <axis = 2> (c, all_rows)",
    "a number for each channel": CONV + "s = Sub(c, channel) y = Div(s, channel)",
    "a number for each column": CONV + "s = Mul(columns, c) y = Sub(columns, s)",
    "a number for each element": CONV + "s = Add(c, all) y = Max(s, c)",
    "a number for each channel between codes": CONV + "s = Mul(c, channel) y = Conv(s, v)",
    "slopes": CONV + "y = PRelu(c, slopes)",
    "slopes between codes": CONV + "p = PRelu(c, slopes) y = Conv(p, v)",
    "powers": CONV + "s = Pow(c, two) t = Pow(s, half) y = Add(t, c)",
    "functions": CONV
    + "a = Elu <alpha = 0.7> (c) b = Softplus(a) d = Mish(b) e = Softsign(d) f = Reciprocal(b) y = Add(e, f)",
    "more functions": CONV
    + "a = Abs(c) b = Exp(a) d = Log(b) e = Sqrt(d) f = Floor(c) g = Ceil(e) h = Round(c) i = Add(g, f) y = Add(i, h)",
    "functions between codes": CONV + "a = Erf(c) b = Conv(a, v) d = Softplus(b) y = Conv(d, v)",
    "gathered": CONV + "a = Tanh(c) y = Gather <axis = 1> (a, order)",
    "one of each": CONV + "y = Gather <axis = 2> (c, second)",
    "gathered codes": CONV + "a = Gather <axis = 3> (c, order) y = Conv(a, v)",
    "a border that mirrors": CONV + 'a = Tanh(c) y = Pad <mode = "reflect"> (a, border)',
    "codes that are repeated, and cut off": CONV + 'a = Pad <mode = "edge"> (c, cut) y = Conv(a, v)',
    "a border of zeros, and an end cut off": CONV + "a = Tanh(c) b = Pad (c, cut) d = Conv(b, v) y = Conv(d, v)",
    "the other end": CONV + 'a = Pad <mode = "wrap"> (c, border) y = Conv(a, v)',
    "tiles": CONV + "a = Tanh(c) y = Tile(a, twice)",
    "expanded codes": CONV + "a = MaxPool <kernel_shape = [1, 7]> (c) e = Expand(a, wider) y = Conv(e, v)",
}
ROWS = {
    "rows": "y = MatMul(x, m)",
    "rows with a bias": "a = MatMul(x, m) b = Add(a, mb) y = MatMul(b, n)",
    "rows and their mean": "a = MatMul(x, m) b = Relu(a) d = MatMul(b, n) y = ReduceMean <keepdims = 0> (d, one)",
    "normalized rows": "a = LayerNormalization <epsilon = 0.001> (x, gain, shift) y = MatMul(a, m)",
    "gelu": "a = MatMul(x, m) d = Div(a, root) e = Erf(d) f = Add(e, unit) g = Mul(a, f) y = Mul(g, half)",
    "products of activations": "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(x, t)",
    "positions": "a = Add(x, place) b = MatMul(a, q) d = Add(token, b) y = Relu(d)",
    "rows that were planes": "t = Transpose <perm = [0, 2, 1]> (x) y = Conv(t, narrow)",
    "halves of rows": "b, d = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 2> (d, b)",
    "some rows": "a = MatMul(x, q) y = Slice(a, one, three, one)",
    "attention": """
        l = LayerNormalization(x, gain, shift)
        a = MatMul(l, q) b = Reshape(a, heads) d = Transpose <perm = [0, 2, 1, 3]> (b)
        e = MatMul(l, k) f = Reshape(e, heads) g = Transpose <perm = [0, 2, 3, 1]> (f)
        h = MatMul(d, g) i = Div(h, size) j = Softmax(i)
        o = MatMul(l, u) p = Reshape(o, heads) r = Transpose <perm = [0, 2, 1, 3]> (p)
        s = MatMul(j, r) t = Transpose <perm = [0, 2, 1, 3]> (s) v_ = Reshape(t, flat)
        z = Add(v_, x) a2 = MatMul(z, m) b2 = Relu(a2) d2 = MatMul(b2, n) y = Add(d2, z)""",
}
CONSTANTS |= {"all_rows": noise(8, 7, seed=15), "unit": np.array(1, np.float32), "narrow": noise(5, 12, 3, seed=16)}
REFUSED = {
    "an operator that is not known": (CONV + "y = Hardmax(c)", "the operator is not known to it"),
}
CONSTANTS |= {"border": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "cut": np.array([0, 0, 2, -1, 0, 0, -1, 1])}


def model(body: str, shape: tuple[int, ...]) -> ir.Model:
    used = {name: array for name, array in CONSTANTS.items() if re.search(rf"[(,] *{name} *[,)]", body)}
    return parse(f"g (float[N, {', '.join(map(str, shape[1:]))}] x) => (float y) {{ {body} }}", **used)


# In float the sets differ in the width of a vector only, which random networks try too. Between codes they differ in
# layers and in what is rounded and looked up behind them, of which the others have some of each.
SETS = {f"{kind}-{chosen.name}": (kind == "float", chosen) for kind in ("codes", "float") for chosen in present()}
SOME = (
    "softmax of columns between codes",
    "average pool of codes",
    "padded average pool of codes",
    "a number for each channel between codes",
    "functions between codes",
    "gathered codes",
    "expanded codes",
    "rows with a bias",
    "gelu",
    "attention",
)


def programs_of(
    chosen: Isa, folder: Path, *, floating: bool, names: Collection[str] | None = None, every: int = 1
) -> dict[str, Program]:
    """A small network for each operator, or for some of them: every second one, or those of these names."""
    programs = {}
    for graphs, shape in ((GRAPHS, IMAGE), (ROWS, TOKENS)):
        for name, body in [*graphs.items()][::every]:
            if names is not None and name not in names:
                continue
            feeds = samples(*shape)
            network = quantized(model(body, shape), feeds, keep_float=lambda _site: floating)
            programs[name] = program_of(network, feeds, chosen, folder / name)
    return programs


@pytest.mark.long
def test_every_second_operator_between_codes(tmp_path: Path) -> None:
    chosen = present()[-1]
    assert compared(programs_of(chosen, tmp_path, floating=False, every=2), chosen, tmp_path).wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize(("floating", "chosen"), SETS.values(), ids=SETS)
def test_every_operator(floating: bool, chosen: Isa, tmp_path: Path) -> None:
    result = compared(programs_of(chosen, tmp_path, floating=floating), chosen, tmp_path)
    assert result.wrong == {}


@pytest.mark.parametrize("chosen", present()[:-1], ids=lambda chosen: chosen.name)
def test_some_operators_between_codes(chosen: Isa, tmp_path: Path) -> None:
    result = compared(programs_of(chosen, tmp_path, floating=False, names=SOME), chosen, tmp_path)
    assert result.wrong == {}
    assert set(SOME) <= GRAPHS.keys() | ROWS.keys()


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_kernel_is_named(case: str, tmp_path: Path) -> None:
    body, reason = REFUSED[case]
    network = quantized(model(body, IMAGE), samples(*IMAGE))
    with pytest.raises(TargetError, match=rf"y(/\w+)?: {reason}"):
        program_of(network, samples(*IMAGE), present()[0], tmp_path / "job")


def test_rows_of_a_table_at_places_that_are_an_input(tmp_path: Path) -> None:
    feeds = [{"i": np.random.default_rng(seed).integers(-50, 50, (3, 10))} for seed in range(2)]
    programs = {}
    for form in (FLOAT32, Integer(5), Codebook(3)):
        network = quantized(parse(TABLES, **TABLE_CONSTANTS), feeds, forms={"embedding": form})
        programs[str(form)] = program_of(network, feeds, present()[0], tmp_path / str(form))
    held = {name: loaded_bytes(program.steps[0].kernel.constants[0]) for name, program in programs.items()}
    assert held == {"float32": 4 * 50 * 8, "int5": 50 * 8, "codebook3": 50 * 8}
    rows = {**TABLE_CONSTANTS, "embedding": noise(50, 16), "m": noise(16, 40, seed=1)}
    network = quantized(parse(TABLES, **rows), feeds, forms={"embedding": RowTrellis(6)})
    programs["paths"] = program_of(network, feeds, present()[0], tmp_path / "paths")
    assert compared(programs, present()[0], tmp_path).wrong == {}


def test_places_that_are_computed(tmp_path: Path) -> None:
    feeds, programs = [{"i": np.arange(6).reshape(3, 2)}], {}
    for name, body in {"negative": "p = Neg(i) y = Gather(t, p)", "columns": "y = Gather <axis = 1> (t, i)"}.items():
        network = quantized(parse(f"g (int64[N, 2] i) => (float y) {{ {body} }}", t=noise(9, 6)), feeds)
        programs[name] = program_of(network, feeds, present()[0], tmp_path / name)
    assert compared(programs, present()[0], tmp_path).wrong == {}


def test_a_table_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the float operator of this ONNX Runtime would give: here it is another function."""

    def doubled(_step: LoweredStep, inputs: Sequence[np.ndarray]) -> np.ndarray:
        return np.minimum(inputs[0], 127).astype(np.uint8) * np.uint8(2)

    monkeypatch.setitem(registry.OPERATORS, "Mish", replace(OPERATORS["Mish"], reference=doubled))  # type: ignore[arg-type]
    graph = f"g (float[N, 6, 8, 7] x) => (float y) {{ {CONV} d = Mish(c) y = Conv(d, v) }}"
    feeds = samples(2, *IMAGE[1:])
    network = quantized(parse(graph, w=CONSTANTS["w"], v=CONSTANTS["v"]), feeds)
    chosen = present()[0]
    assert compared({"a": program_of(network, feeds, chosen, tmp_path / "a")}, chosen, tmp_path).wrong == {}


def test_a_tied_table_lies_in_the_library_once(tmp_path: Path) -> None:
    """The rows that are looked up and the matrix of the product have the same bytes."""
    feeds = [{"i": np.random.default_rng(seed).integers(0, 50, (1, 6))} for seed in range(2)]
    graph = "g (int64[N, 6] i) => (float[N, 6, 50] y) { e = Gather(t, i) z = MatMul(e, w) y = MatMul(z, h) }"
    table = noise(50, 16)
    network = quantized(parse(graph, t=table, w=noise(16, 16, seed=1), h=table.T.copy()), feeds, forms=Integer(7))
    program = program_of(network, feeds, present()[0], tmp_path / "tied")
    codes = [c.indexed for step in program.steps for c in step.kernel.constants if isinstance(c, Arranged)]
    planes = [plane.tobytes() for one in codes for plane in one.planes]
    assert len(planes) == 3 * 3
    assert len(set(planes)) == 2 * 3
    assert compared({"tied": program}, present()[0], tmp_path).wrong == {}
