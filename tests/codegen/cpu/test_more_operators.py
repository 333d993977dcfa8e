"""Operators on any types, over any axes, at computed places, and such as are replaced by others."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import opened, present
from graphs import noise, parse
from lowering import quantized
from together import compared, program_of

from ptqc.codegen.cpu.target import build
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.program.program import Program
from ptqc.errors import NoKernel, UsageError
from ptqc.execution.onnxruntime import Feeds, Runner

CONSTANTS = {
    "apart": np.array([1, 3]),
    "all_but_one": np.array([0, 2, 3]),
    "one": np.array([1]),
    "two": np.array(2),
    "half": np.array(0.5, np.float32),
    "channel": noise(6, seed=1),
    "positive": np.abs(noise(6, seed=2)) + 0.5,
    "row": noise(4, seed=3),
    "larger": np.array([1, 1, 1.6, 2.5], np.float32),
    "smaller": np.array([1, 1, 0.6, 0.5], np.float32),
    "seven": np.array(7, np.int32),
    "byte": np.array(3, np.uint8),
    "second": np.array(1),
    "table": np.array([[3, -1, 0], [2, 2, 1]]),
    "rows": noise(5, 4, seed=4),
    "bound": np.array([0.5], np.float32),
    "bounds": np.array([4]),
    "crossed": np.array([0, 0, 1, 0, 0, 0, 0, 2]),
}
# What is done with x, and with other inputs; types of the outputs that are not float.
PLANES = {
    "sums over axes apart": "a = ReduceSum <keepdims = 0> (x, apart) y = Neg(a)",
    "norms": "a = ReduceL2(x, one) b = ReduceL1(x, apart) c = Mul(a, b) y = ReduceProd(c, one)",
    "squares": "a = ReduceSumSquare(x, one) y = ReduceLogSumExp(a, apart)",
    "choices": "a = Neg(x) b = Less(x, a) c = Equal(x, x) d = And(b, c) e = Not(d) y = Where(e, x, half)",
    "truth": "a = Greater(x, row) b = LessOrEqual(x, half) c = Or(a, b) y = Xor(c, a)",
    "angles": "a = Sin(x) b = Cos(a) c = Atan(b) d = Tan(c) e = Sinh(d) y = Asinh(e)",
    "signs": "a = Sign(x) b = IsNaN(x) c = Cast <to = 1> (b) y = Sum(a, c, x)",
    "means": "a = Mean(x, x, row) b = Max(a, x, half) y = Min(b, row, x)",
    "powers": "a = Abs(x) b = Abs(row) y = Pow(a, b)",
    "units": "a = Selu(x) b = Celu(a) c = ThresholdedRelu(b) y = Shrink(c)",
    "batch normalization": "y = BatchNormalization <epsilon = 0.01> (x, channel, channel, channel, positive)",
    "instance normalization": "y = InstanceNormalization <epsilon = 0.01> (x, channel, channel)",
    "all of layer normalization": "y, m, i = LayerNormalization <axis = 2> (x, rows, rows)",
    "larger planes": 'a = Resize <mode = "linear"> (x, , larger) y = Neg(a)',
    "smaller planes": """y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners">
        (x, , smaller)""",
    "cubic": 'y = Resize <mode = "cubic"> (x, , larger)',
    "pool that is rounded up": "y = AveragePool <kernel_shape = [2, 2], strides = [2, 3], ceil_mode = 1> (x)",
    "places of the largest": "y = ArgMax <axis = 2> (x)",
    "places of the smallest": "y = ArgMin <axis = 0, keepdims = 0, select_last_index = 1> (x)",
    "triangle": "a = Trilu(x, second) y = Trilu <upper = 0> (a)",
    "running sums": "a = CumSum <reverse = 1> (x, two) y = CumSum <exclusive = 1> (a, second)",
    "a table of places": "y = Gather <axis = 3> (x, table)",
    "a table of places across the batch": "s = Shape(x) f = Flatten(x) g = Gather <axis = 1> (f, table) y = Neg(g)",
    "numbers as lists of one": "a = Clip(x, , bound) b = Pad(a, crossed, bound) c = Trilu(b, one) y = CumSum(c, one)",
}
OTHERS = {
    "whole numbers": ("int32[N, 5] i", """a = Mul(i, seven) b = Sub(a, i) d = Div(b, seven)
        e = Mod(d, seven) y = Max(e, i)"""),
    "sums of whole numbers": ("int64[N, 5] i", "a = ReduceMax(i, one) b = ReduceSum(i, one) y = Add(a, b)"),
    "bounds as lists of one": ("int64[N, 5] i", "y = Clip(i, one, bounds)"),
    "bits": ("uint8[N, 5] i", """a = BitwiseAnd(i, byte) b = BitwiseXor(a, i) c = BitwiseNot(b)
        y = BitShift <direction = "RIGHT"> (c, byte)"""),
    "conversions": ("int64[N, 5] i", """a = Cast <to = 1> (i) b = Mul(a, half) d = Cast <to = 6> (b)
        e = Cast <to = 9> (d) y = Cast <to = 1> (e)"""),
    "half precision": ("float16[N, 5] h", "a = Cast <to = 1> (h) b = Neg(a) y = Cast <to = 10> (b)"),
    "elements at places": ("float[N, 5] t, int64[N, 3] p", "y = GatherElements <axis = 1> (t, p)"),
    "slices at places": ("float[6, 5] t, int64[2, 3] p", "y = Gather <axis = 1> (t, p)"),
    "slices at lists of places": ("float[6, 5] t, int64[4, 2] p", "y = GatherND (t, p)"),
    "elements put at places": ("float[N, 5] t, int64[N, 3] p", """a = GatherElements <axis = 1> (t, p) b = Neg(a)
        y = ScatterElements <axis = 1> (t, p, b)"""),
    "elements added at places": ("float[6, 5] t, int64[2, 3] p", """a = GatherElements <axis = 0> (t, p)
        y = ScatterElements <reduction = "add"> (t, p, a)"""),
    "elements put at lists of places": ("float[6, 5] t, int64[4, 2] p", """a = GatherND(t, p) b = Neg(a)
        y = ScatterND (t, p, b)"""),
    "larger slices at places": ("float[6, 5] t, int64[2, 3] p", """a = Gather(t, p) b = Neg(a) q = Unsqueeze(p, two)
        y = ScatterND <reduction = "max"> (t, q, b)"""),
}  # fmt: skip
OUTPUTS = {
    "truth": "bool",
    "places of the largest": "int64",
    "places of the smallest": "int64",
    "whole numbers": "int32",
    "sums of whole numbers": "int64",
    "bounds as lists of one": "int64",
    "bits": "uint8",
    "half precision": "float16",
}
INPUTS = {
    "x": noise(2, 6, 5, 4),
    "i": np.arange(-5, 5).reshape(2, 5),
    "h": noise(2, 5).astype(np.float16),
    "t": noise(6, 5),
    "p": np.array([[0, -1, 2], [3, 1, -2]]),
}


def feeds_of(inputs: str, seed: int) -> Feeds:
    """Values of the inputs as they are declared."""
    feeds = {}
    for name in re.findall(r"\] (\w)", inputs):
        feeds[name] = np.roll(INPUTS[name], seed, axis=-1)
    if "uint8" in inputs:
        feeds["i"] = np.abs(feeds["i"]).astype(np.uint8)
    if "int32" in inputs:
        feeds["i"] = feeds["i"].astype(np.int32)
    if "t" in feeds:
        feeds |= {"t": feeds["t"][:2]} if "[N, 5] t" in inputs else {}
        feeds |= {"p": np.array([[0, 1], [-1, 2], [3, 4], [5, -2]])} if "[4, 2] p" in inputs else {}
    return feeds


def programs_of(chosen: Isa, folder: Path) -> dict[str, Program]:
    """A small network for each operator."""
    programs: dict[str, Program] = {}
    graphs = {**{name: ("float[N, 6, 5, 4] x", body) for name, body in PLANES.items()}, **OTHERS}
    for name, (inputs, body) in graphs.items():
        used = {key: array for key, array in CONSTANTS.items() if re.search(rf"[(,] *{key} *[,)]", body)}
        made = parse(f"g ({inputs}) => ({OUTPUTS.get(name, 'float')} y) {{ {body} }}", **used)
        feeds = [feeds_of(inputs, seed) for seed in range(2)]
        low = quantized(made, feeds, keep_float=lambda _site: True)
        programs[name] = program_of(low, feeds, chosen, folder / name)
    return programs


@pytest.mark.slow
def test_every_operator(tmp_path: Path) -> None:
    assert compared(programs_of(present()[0], tmp_path), present()[0], tmp_path).wrong == {}


def test_an_input_that_settles_shapes_has_to_stay_as_it_was(tmp_path: Path) -> None:
    made = parse("g (float[N, 3, 4] x, int64[1] axes) => (float y) { a = ReduceSum(x, axes) y = Neg(a) }")
    feeds = [{"x": noise(2, 3, 4, seed=seed), "axes": np.array([1])} for seed in range(2)]
    low = quantized(made, feeds, keep_float=lambda _site: True)
    library = opened(build(low.lowered, export(low.lowered, low.model), feeds, tmp_path))
    np.testing.assert_allclose(library.run(feeds[0])["y"], Runner(made).run(feeds[0])["y"], rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"input 'axes' is \[2\]; the library was built for \[1\]"):
        library.run({**feeds[0], "axes": np.array([2])})


def test_a_division_that_may_be_by_zero_is_refused(tmp_path: Path) -> None:
    made = parse("g (int32[4] a, int32[4] b) => (int32 y) { y = Div(a, b) }")
    feeds = [{"a": np.full(4, 7, np.int32), "b": np.full(4, 2, np.int32)}]
    low = quantized(made, feeds)
    with pytest.raises(NoKernel, match="no kernel for Div y: integers are divided by b, which may be zero"):
        build(low.lowered, export(low.lowered, low.model), feeds, tmp_path)


def test_rows_that_are_masked_whole_and_zeros_without_sign(tmp_path: Path) -> None:
    """A softmax of nothing but −∞ is NaN, its largest element −∞, and −0 is 0 to all kernels behind it."""
    body = """more = Greater(x, half) kept = Where(more, x, lowest) y = Softmax(kept) z = Neg(x)
        m = ReduceMax <keepdims = 1> (kept, one) none = IsNaN(y) n = Where(none, half, y)"""
    made = parse(
        f"g (float[N, 20] x) => (float[N, 20] y, float[N, 20] z, float[N, 1] m, float[N, 20] n) {{ {body} }}",
        half=CONSTANTS["half"], lowest=np.array(-np.inf, np.float32), one=np.array([1]),
    )  # fmt: skip
    feeds = [{"x": noise(3, 20, seed=seed)} for seed in range(2)]
    feeds[0]["x"][1] = 0
    low = quantized(made, feeds, keep_float=lambda _site: True)
    library = opened(build(low.lowered, export(low.lowered, low.model), feeds, tmp_path))
    result, wanted = library.run(feeds[0]), Runner(made).run(feeds[0])
    assert np.isnan(result["y"][1]).all()
    assert result["m"][1] == -np.inf
    for name, values in wanted.items():
        np.testing.assert_allclose(result[name], values, rtol=1e-5, atol=1e-6)


def test_an_output_that_never_changes_has_the_shape_of_the_model(tmp_path: Path) -> None:
    made = parse("g (float[3, 4] x) => (float[3, 4] y, int64[1] s) { y = Neg(x) s = Shape <start = 1> (x) }")
    feeds = [{"x": noise(3, 4, seed=seed)} for seed in range(2)]
    low = quantized(made, feeds, keep_float=lambda _site: True)
    library = opened(build(low.lowered, export(low.lowered, low.model), feeds, tmp_path))
    np.testing.assert_array_equal(library.run(feeds[0])["s"], [4])
