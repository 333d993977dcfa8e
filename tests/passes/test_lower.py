import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from graphs import noise, parse
from lowering import Quantized, quantized

from ptqc import reference
from ptqc.execute.onnxruntime import Feeds, Runner, run, session_options
from ptqc.formats import FLOAT16, FLOAT32, UINT8, Family, Format, QuantParams, integer
from ptqc.passes.lower import Lower
from ptqc.solutions import Tuned

RESIDUAL = """g (float[N, 3, 8, 8] x) => (float[N, 5] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu(c)
    d = Conv <pads = [1, 1, 1, 1], group = 4> (r, depth, b)
    q = Clip(d, zero, six)
    e = Conv(q, point)
    s = Add(e, r)
    t = Relu(s)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
    f = Conv <strides = [2, 2]> (p, other, b)
    j = Concat <axis = 1> (f, f)
    m = GlobalAveragePool(j)
    h = Flatten(m)
    y = Gemm <transB = 1> (h, head, hb)
}"""
CONSTANTS = {
    "w": noise(4, 3, 3, 3, scale=0.4),
    "b": noise(4, seed=9),
    "depth": noise(4, 1, 3, 3, seed=1, scale=0.4),
    "point": noise(4, 4, 1, 1, seed=2),
    "other": noise(4, 4, 2, 2, seed=3),
    "head": noise(5, 8, seed=4),
    "hb": noise(5, seed=5),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
}
SEVEN = integer(7)


def samples(*shape: int, count: int = 4) -> list[Feeds]:
    return [{"x": noise(*shape, seed=seed)} for seed in range(count)]


def check(made: Quantized, feeds: list[Feeds], tolerance: float = 0.02) -> set[str]:
    """The lowered graph is valid, keeps the interface and computes what it says; returns the optimized operators."""
    proto = ir.to_proto(made.lowered.model)
    onnx.checker.check_model(proto, full_check=True)
    before = ir.to_proto(made.model)
    for side in ("input", "output"):
        old, new = (getattr(p.graph, side) for p in (before, proto))
        assert [(v.name, v.type.tensor_type.elem_type) for v in new] == [
            (v.name, v.type.tensor_type.elem_type) for v in old
        ]
    for one in feeds:
        expected = made.simulate(one)
        for optimize in (False, True):
            found = made.run(one, optimize=optimize)
            assert list(found) == list(expected)
            for name, value in expected.items():
                assert found[name].shape == value.shape
                distance = np.sqrt(np.mean(np.square(found[name] - value)) / max(np.mean(np.square(value)), 1e-9))
                assert distance < tolerance, (name, optimize)
    free = {kernel.node for kernel in made.plan.kernels if kernel.float_output}
    assert parity(made, feeds[0]) > 0 or set(made.plan.integer) <= free
    return operators(made.lowered.model)


def parity(made: Quantized, feeds: Feeds) -> int:
    """Kernels compared with the integer reference, each given the integers that ONNX Runtime gave it."""
    steps = list(reference.steps(made.lowered))
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    values = Runner(made.lowered.model, names).run(feeds, names) if names else {}
    for step in steps:
        np.testing.assert_array_equal(reference.compute(step, values), values[step.output], step.name)
    return len(steps)


def operators(model: ir.Model) -> set[str]:
    """What ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
        return {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}


INTEGER = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearAdd", "QGemm", "QLinearGlobalAveragePool"}
MOVES = {"MaxPool", "NhwcMaxPool", "Concat", "Reshape", "Flatten", "Transpose", "QLinearConcat", "Squeeze"}


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_a_residual_network_runs_on_integer_kernels(bits: int) -> None:
    made = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=integer(bits))
    left = check(made, [*samples(2, 3, 8, 8), *samples(1, 3, 8, 8)])
    assert left <= INTEGER | MOVES
    assert set(made.lowered.integer) == {"c", "d", "e", "s", "f", "m", "y"}
    assert parity(made, samples(2, 3, 8, 8)[0]) == 6  # the last product is float behind its kernel
    assert set(made.lowered.formats.values()) == {integer(bits)}


def test_eight_bits_are_close_to_float() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    made = quantized(model, samples(2, 3, 8, 8), forms=SEVEN)
    for feeds in samples(2, 3, 8, 8):
        expected = run(model, feeds)["y"]
        assert np.abs(made.run(feeds)["y"] - expected).max() < 0.1 * np.abs(expected).max()


def test_the_float_model_is_left_as_it_is() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    quantized(model, samples(2, 3, 8, 8))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("kept", ["x", "r", "q", "t", "f"])
def test_parts_may_stay_float(kept: str) -> None:
    made = quantized(
        parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN, keep_float=lambda site: site == kept
    )
    assert 0 < len(made.plan.integer) < 7
    check(made, samples(2, 3, 8, 8))


def test_all_may_stay_float() -> None:
    made = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN, keep_float=lambda _site: True)
    assert not made.lowered.codes
    check(made, samples(2, 3, 8, 8), 1e-5)


C = "c = Conv(x, w) "
SMALL = {
    "w": noise(6, 6, 1, 1, scale=0.4),
    "v": noise(6, 6, 1, 1, seed=1, scale=0.4),
    "low": np.array(-0.75, np.float32),
    "high": np.array(1.25, np.float32),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1]),
    "zero": np.array(0, np.float32),
    "axes": np.array([2]),
    "two": np.array([2]),
    "four": np.array([4]),
    "one": np.array([1]),
    "order": np.array([5, 0, 3, 2, 1, 4]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "rows": np.array([0, 6, -1]),
    "map": np.array([0, 6, 8, 8]),
    "repeated": np.array([1, 1, 8, 1]),
    "rim": np.array([1, 2]),
}
Y = "float[N, 6, H, W] y"
GRAPHS = {
    "the output is quantized": (C + "y = Conv(c, v)", Y),
    "a relu is the output": (C + "y = Relu(c)", Y),
    "a clip is the output": (C + "y = Clip(c, zero, high)", Y),
    "the value behind an absorbed relu is an output": (C + "r = Relu(c) y = Conv(r, v)", f"{Y}, float[N, 6, 8, 8] r"),
    "a relu that is not absorbed": (C + "r = Relu(c) s = Conv(r, v) y = Add(s, c)", Y),
    "an inner value is an output": (
        C + "r = MaxPool <kernel_shape = [2, 2]> (c) y = Conv(r, v)",
        f"{Y}, float[N, 6, 8, 8] c, float[N, 6, 7, 7] r",
    ),
    "a moved value is the output": (C + "y = MaxPool <kernel_shape = [2, 2]> (c)", Y),
    "the input is moved first": ("r = MaxPool <kernel_shape = [2, 2]> (x) y = Conv(r, w)", Y),
    "the input is also used in float": ("t = Tanh(x) c = Conv(x, w) y = Sub(t, c)", Y),
    "the input is also an output": ("y = Conv(x, w) z = Identity(x)", f"{Y}, float[N, 6, 8, 8] z"),
    "other bounds": (C + "r = Clip(c, low, high) y = Conv(r, v)", Y),
    "a lower bound": (C + "r = Clip(c, low) y = Conv(r, v)", Y),
    "an upper bound": (C + "r = Clip(c, , high) y = Conv(r, v)", Y),
    "padding": (C + "r = Pad(c, pads) y = Conv(r, v)", Y),
    "padding with a zero": (C + "r = Pad(c, pads, zero) y = Conv(r, v)", Y),
    "padding of some axes": (C + "r = Pad(c, rim, , axes) y = Conv(r, v)", Y),
    "padding by the edge": (C + 'r = Pad <mode = "edge"> (c, pads) y = Conv(r, v)', Y),
    "halves": (C + "p, q = Split <axis = 2, num_outputs = 2> (c) d = Conv(p, v) e = Conv(q, v) y = Add(d, e)", Y),
    "slices": (C + "r = Slice(c, one, four, axes, two) y = Conv(r, v)", Y),
    "gathered channels": (C + "r = Gather <axis = 1> (c, order) y = Conv(r, v)", Y),
    "nearest neighbours": (C + 'r = Resize <mode = "nearest"> (c, , scales) y = Conv(r, v)', Y),
    "turned and back": (
        C + "t = Transpose <perm = [0, 1, 3, 2]> (c) r = Reshape(t, rows) s = Reshape(r, map) y = Conv(s, v)",
        Y,
    ),
    "squeezed and back": (
        "m = GlobalAveragePool(x) q = Squeeze(m, axes) u = Unsqueeze(q, axes) e = Expand(u, repeated) y = Conv(e, w)",
        Y,
    ),
    "concatenation with an input": (C + "r = Concat <axis = 2> (c, x) y = Conv(r, v)", Y),
    "a value twice": (C + "r = Concat <axis = 2> (c, c) s = Add(r, r) y = Conv(s, v)", Y),
    "a product": (C + "d = Conv(x, v) r = Mul(c, d) y = Conv(r, v)", Y),
    "float in between": (C + "t = Tanh(c) y = Conv(t, v)", Y),
    "squared": (C + "y = Mul(c, c)", Y),
    "two readers": (C + "d = Conv(c, v) t = Tanh(c) y = Sub(d, t)", Y),
    "a shared weight": (C + "d = Conv(c, w) y = Conv(d, w)", Y),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_lowering(kind: str) -> None:
    nodes, outputs = GRAPHS[kind]
    model = parse(f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}", **SMALL)
    made = quantized(model, samples(2, 6, 8, 8), forms=SEVEN)
    left = check(made, [*samples(2, 6, 8, 8), *samples(1, 6, 8, 8)], 0.05)
    assert "Conv" not in left
    assert len(made.plan.integer) == sum(nodes.count(op) for op in ("Conv(", "Add(", "Mul(", "Pool("))


def test_no_float_operator_is_left_between_layers() -> None:
    nodes = (
        C + "r = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (r) k = Clip(p, low, high) q = Pad(k, pads) y = Conv(q, v)"
    )
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {nodes} }}", **SMALL)
    made = quantized(model, samples(2, 6, 8, 8), forms=SEVEN)
    nodes_of = [node.op_type for node in made.lowered.model.graph]
    assert "Relu" not in nodes_of
    assert nodes_of.count("QuantizeLinear") == 3
    assert nodes_of.count("DequantizeLinear") == 2 + 2 + 1
    assert operators(made.lowered.model) <= INTEGER | MOVES | {"Clip", "Pad"}


def test_a_relu_whose_codes_do_not_saturate_stays() -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {C} r = Relu(c) y = Conv(r, v) }}", **SMALL)
    wide = {"r": QuantParams(UINT8, 0.02, 100)}
    made = quantized(model, samples(2, 6, 8, 8), forms=SEVEN, params=wide)
    assert "Relu" in [node.op_type for node in made.lowered.model.graph]
    for feeds in samples(2, 6, 8, 8):
        np.testing.assert_allclose(made.run(feeds)["y"], made.simulate(feeds)["y"], atol=0.05)


def test_a_clip_below_the_largest_code_stays() -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {C} r = Clip(c, zero, high) y = Conv(r, v) }}", **SMALL)
    wide = {"r": QuantParams(UINT8, 0.02, 0)}
    made = quantized(model, samples(2, 6, 8, 8), forms=SEVEN, params=wide)
    assert "Clip" in [node.op_type for node in made.lowered.model.graph]
    for feeds in samples(2, 6, 8, 8):
        np.testing.assert_allclose(made.run(feeds)["y"], made.simulate(feeds)["y"], atol=0.05)


SUBGRAPH = """g (float[N, 6, 8, 8] x, bool k) => (float[N, 6, 8, 8] y) {
    c = Conv(x, w)
    y = If (k) <
        then_branch = then () => (float[N, 6, 8, 8] a) { a = Tanh(c) },
        else_branch = other () => (float[N, 6, 8, 8] b) { b = Neg(c) }
    >
}"""


def test_subgraphs_read_the_dequantized_value() -> None:
    made = quantized(parse(SUBGRAPH, **SMALL), [{"x": noise(2, 6, 8, 8), "k": np.array(True)}], forms=SEVEN)
    for choice in (True, False):
        check(made, [{"x": noise(2, 6, 8, 8), "k": np.array(choice)}])


# Weights


TABLES = """g (int64[N, T] i) => (float[N, T, 6] y) {
    e = Gather(embedding, i)
    z = MatMul(e, m)
    s = Add(z, mask)
    y = MatMul(s, h)
}"""
TABLE_CONSTANTS = {
    "embedding": noise(50, 8),
    "m": noise(8, 40, seed=1),
    "mask": np.where(np.random.default_rng(0).random((10, 40)) < 0.5, np.float32(0), np.float32(-1)),
    "h": noise(40, 6, seed=2),
}
PALETTE = Format(Family.PALETTE, 1)
WORDS: list[Feeds] = [{"i": np.random.default_rng(seed).integers(0, 50, (3, 10))} for seed in range(3)]


@pytest.mark.parametrize("form", [integer(3), integer(8), FLOAT16, FLOAT32], ids=str)
def test_tables_and_float_layers(form: Format) -> None:
    forms = {"embedding": form, "m": form, "h": form, "mask": PALETTE}
    made = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    check(made, WORDS, 1e-5)
    assert set(made.lowered.formats.values()) == ({form, PALETTE} if form.family == "int" else {PALETTE})
    assert made.lowered.layer_constants == {}


def test_a_table_in_front_of_integer_layers() -> None:
    made = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms={"mask": PALETTE, "m": SEVEN, "h": SEVEN})
    assert set(made.plan.integer) == {"z", "y"}
    check(made, WORDS)


def test_a_layer_without_codes_computes_in_float() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    made = quantized(model, samples(2, 3, 8, 8), forms={"point": FLOAT16, "w": SEVEN, "depth": SEVEN, "other": FLOAT32})
    assert set(made.plan.integer) == {"c", "d", "s", "m", "y"}
    check(made, samples(2, 3, 8, 8))


@pytest.mark.parametrize("quantize", [True, False])
def test_a_weight_used_in_two_ways(quantize: bool) -> None:
    """The scales of its table run along an axis that need not be the output channels of either layer."""
    graph = "g (float[N, 20] x) => (float[N, 20] y) { a = MatMul(x, w) r = Relu(a) y = Gemm <transB = 1> (r, w, b) }"
    model = parse(graph, w=noise(20, 20, scale=0.3) * np.linspace(0.1, 2, 20, dtype=np.float32), b=noise(20))
    made = quantized(model, samples(4, 20), forms=SEVEN, keep_float=lambda _site: not quantize)
    check(made, samples(4, 20))


def test_new_biases_are_used() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    made = quantized(model, samples(2, 3, 8, 8), forms=SEVEN)
    biases = {**made.tuned.biases, "e": noise(4, seed=20), "y": noise(5, seed=21)}
    changed = Lower().apply(model, made.plan, Tuned(made.tuned.weights, biases))
    found = Runner(changed.model).run(samples(2, 3, 8, 8)[0])["y"]
    expected = parse(
        RESIDUAL.replace("Conv(q, point)", "Conv(q, point, eb)"), **{**CONSTANTS, "hb": biases["y"]}, eb=biases["e"]
    )
    again = quantized(expected, samples(2, 3, 8, 8), forms=SEVEN, params=made.plan.activations)
    np.testing.assert_allclose(found, again.run(samples(2, 3, 8, 8)[0])["y"], atol=1e-5)
    assert changed.layer_constants["e/weight"] == "e/bias"
    assert made.lowered.layer_constants["e/weight"] is None
