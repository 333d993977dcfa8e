"""Networks of many kinds: shared weights, branches, loops, tables, and none of these."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import assert_same_interface, compiled, proto, samples, weight
from mostly_slow import mostly_slow

from ptqc.errors import Infeasible, ModelError
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner
from ptqc.passes.base import Result
from ptqc.passes.quantize.calibrate import CalibrateInner

BRANCHES = """g (float[N,48] x, bool c) => (float[N,48] y) {
    h = Neg(x)
    y = If(c) <then_branch = t () => (float[N,48] a) { p = MatMul(h, w) a = MatMul(p, s) },
               else_branch = e () => (float[N,48] b) { q = MatMul(h, v) r = MatMul(q, s) b = Abs(r) }>
}"""


def in_branches() -> onnx.ModelProto:
    """Two layers in each branch of an If, their weights as Constant nodes of the branch; the second one is shared."""
    model = proto(BRANCHES)
    for attribute in model.graph.node[1].attribute:
        for name, seed in {"w": 0, "v": 1, "s": 2}.items():
            if any(name in node.input for node in attribute.g.node):
                tensor = onnx.numpy_helper.from_array(weight(48, 48, seed=seed), name)
                attribute.g.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
    return model


def both_ways(count: int = 32) -> list[dict[str, np.ndarray]]:
    return [{"x": x[None], "c": np.array(bool(i % 3))} for i, x in enumerate(samples(48, count=count))]


@pytest.mark.long
def test_weights_inside_branches_are_packed_down_to_the_size_that_is_named(tmp_path: Path) -> None:
    model = in_branches()
    result = compiled(model, both_ways(), tmp_path, "30%", pipeline="light")
    assert model.ByteSize() > 4 * 48 * 48 * 4
    assert result.path.stat().st_size < 0.3 * model.ByteSize()
    assert result.manifest["results"]["sqnr_db"] > 20
    wanted = Runner(model).run
    for feeds in both_ways(6):
        assert relative([wanted(feeds)["y"]], [result.run(feeds)["y"]]) < 0.1
    with pytest.raises(Infeasible) as refused:
        compiled(model, both_ways(), tmp_path, "6%", force=True, pipeline="light")
    smallest = compiled(model, both_ways(), tmp_path, f"{refused.value.smallest}B", force=True, pipeline="light")
    assert smallest.path.stat().st_size == refused.value.smallest < 0.15 * model.ByteSize()


LOOP = """g (float[N,48] x, int64 n, bool go) => (float[N,48] y) {
    y = Loop(n, go, x) <body = b (int64 i, bool d, float[N,48] s) => (bool e, float[N,48] t) {
        e = Identity(d)
        p = MatMul(s, w)
        r = Relu(p)
        q = MatMul(r, v)
        t = Tanh(q)
    }>
}"""


@pytest.mark.slow
def test_weights_inside_loops_are_fitted_to_what_every_iteration_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = proto(LOOP, w=weight(48, 48), v=weight(48, 48, seed=1))
    mixing, times = weight(48, 6).T, {"n": np.array(3), "go": np.array(True)}
    feeds = [{"x": x[None] @ mixing, **times} for x in samples(6, count=48)]
    fitted = compiled(model, feeds, tmp_path / "fitted", "20%", pipeline="light")
    monkeypatch.setattr(CalibrateInner, "apply", lambda _, value: Result(value, False))
    blind = compiled(model, feeds, tmp_path / "blind", "20%", pipeline="light")
    losses = [result.manifest["results"]["loss"] for result in (fitted, blind)]
    assert losses[0] < 0.6 * losses[1]


# graph, weights, shape of a sample, budget, operators that must be in what ONNX Runtime runs
KINDS = {
    "a weight shared by two convolutions": (
        "g (float[N,32,8,8] x) => (float[N,32,8,8] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, w) }",
        {"w": weight(32, 32, 3, 3)},
        (32, 8, 8),
        "30%",
        {"QLinearConv": 2},
    ),
    "a transposed convolution as wide as its stride": (
        "g (float[N,32,8,8] x) => (float[N,32,16,16] y) "
        "{ a = ConvTranspose<strides=[2,2]>(x, w, b) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, v) }",
        {"w": weight(32, 32, 2, 2), "b": weight(32), "v": weight(32, 32, 3, 3)},
        (32, 8, 8),
        "30%",
        {"QLinearConv": 2},
    ),
    "another transposed convolution": (
        "g (float[N,16,8,8] x) => (float[N,16,15,15] y) "
        "{ a = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w) y = Relu(a) }",
        {"w": weight(16, 16, 3, 3)},
        (16, 8, 8),
        "60%",
        {"ConvTranspose": 1},
    ),
    "convolutions over one axis": (
        "g (float[N,16,20] x) => (float[N,32,20] y) { a = Conv<pads=[2,2]>(x, w, b) r = Relu(a) y = Conv(r, v) }",
        {"w": weight(64, 16, 5), "b": weight(64), "v": weight(32, 64, 1)},
        (16, 20),
        "40%",
        {"QLinearConv": 2},
    ),
    "products with inputs first": (
        "g (float[N,64] x) => (float[N,32] y) { a = Gemm(x, w, b) r = Relu(a) y = Gemm(r, v) }",
        {"w": weight(64, 96), "b": weight(96), "v": weight(96, 32)},
        (64,),
        "30%",
        {"QGemm": 2},
    ),
    "products of rank 3": (
        "g (float[N,5,64] x) => (float[N,5,32] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }",
        {"w": weight(64, 96), "v": weight(96, 32)},
        (5, 64),
        "30%",
        {"QLinearMatMul": 1},
    ),
    "an output that is quantized": (
        "g (float[N,8,8,8] x) => (float[N,32,8,8] y) { y = Conv<pads=[1,1,1,1]>(x, w, b) }",
        {"w": weight(32, 8, 3, 3), "b": weight(32)},
        (8, 8, 8),
        "40%",
        {"QLinearConv": 1},
    ),
    "two outputs, one in the middle": (
        "g (float[N,8,8,8] x) => (float[N,32,8,8] r, float[N,16,8,8] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, v) }",
        {"w": weight(32, 8, 3, 3), "b": weight(32), "v": weight(16, 32, 3, 3)},
        (8, 8, 8),
        "30%",
        {"QLinearConv": 2},
    ),
    "a fixed batch": (
        "g (float[1,8,8,8] x) => (float[1,10] y) { a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) "
        "p = GlobalAveragePool(r) f = Flatten(p) z = Gemm(f, v) y = Softmax(z) }",
        {"w": weight(32, 8, 3, 3), "b": weight(32), "v": weight(32, 10)},
        (8, 8, 8),
        "40%",
        {"QLinearConv": 1, "Softmax": 1},
    ),
    "a table alone": (
        "g (int64[N,4] x) => (float[N,4,64] y) { y = Gather(w, x) }",
        {"w": weight(100, 64)},
        None,
        "30%",
        {"Gather": 1},
    ),
}


PLAIN_KINDS = (
    "a transposed convolution as wide as its stride",
    "another transposed convolution",
    "products of rank 3",
    "a fixed batch",
    "a table alone",
)


@pytest.mark.long
@pytest.mark.parametrize("kind", mostly_slow(KINDS, *PLAIN_KINDS))
def test_models_of_many_kinds(kind: str, tmp_path: Path) -> None:
    graph, weights, shape, budget, operators = KINDS[kind]
    model = proto(graph, **weights)
    data = np.arange(128).reshape(32, 4) % 100 if shape is None else samples(*shape)
    # So small operators are faster in float.
    is_integer = any(name.startswith("Q") for name in operators)
    result = compiled(model, data, tmp_path, budget, activations="integer" if is_integer else "auto")
    assert result.path.stat().st_size <= result.manifest["allocation"]["limit"]
    assert operators.items() <= result.manifest["verification"]["operators"].items()
    assert result.manifest["results"]["sqnr_db"] > 25
    assert_same_interface(model, onnx.load(result.path))


TIED = {
    "Relu of a layer": ("r = Relu(a)", "a = Conv(x, w)", "c = Concat <axis = 1> (r, b)"),
    "Clip of a layer": ("r = Clip(a, lo, hi)", "a = Conv(x, w)", "d = Relu(b) c = Concat <axis = 1> (r, d)"),
    "Relu of a sum": ("r = Relu(a)", "p = Conv(x, w) a = Add(p, b)", "c = Concat <axis = 1> (r, b)"),
}


@pytest.mark.parametrize("kind", mostly_slow(TIED, "Clip of a layer"))
def test_an_activation_that_shares_its_scale_with_other_values_runs_on_codes(kind: str, tmp_path: Path) -> None:
    """Its work is not that of saturation: the shared scale also holds what the activation cuts off."""
    activation, before, behind = TIED[kind]
    text = f"b = Conv(x, v) {before} {activation} {behind} y = Conv(c, u)"
    graph = f"g (float[N, 3, 8, 8] x) => (float[N, 8, 8, 8] y) {{ {text} }}"
    bounds = {"lo": np.float32(0), "hi": np.float32(1)} if "Clip" in kind else {}
    weights = {"w": 5 * weight(6, 3, 1, 1), "v": 5 * weight(6, 3, 1, 1, seed=1), "u": weight(8, 12, 1, 1, seed=2)}
    artifact = compiled(proto(graph, 18, **weights, **bounds), samples(3, 8, 8), tmp_path, None, activations="integer")
    result = artifact.manifest["verification"]
    assert result["operators"]["Clip"] == 1
    assert result["operators"]["QLinearConv"] == 3
    assert artifact.manifest["results"]["sqnr_db"] > 20


def test_numbers_given_as_lists_of_one_element_are_numbers(tmp_path: Path) -> None:
    graph = """g (float[N, 3, 8, 8] x) => (float[N, 8, 9, 8] y) {
        a = Conv(x, w) r = Clip(a, zero, six) p = Pad(r, pads, zero) y = Conv(p, u)
    }"""
    weights = {"w": weight(6, 3, 1, 1), "u": weight(8, 6, 1, 1, seed=2), "pads": np.array([0, 0, 0, 0, 0, 0, 1, 0])}
    bounds = {"zero": np.zeros(1, np.float32), "six": np.full(1, 6, np.float32)}
    result = compiled(proto(graph, **weights, **bounds), samples(3, 8, 8), tmp_path, None, activations="integer")
    operators = result.manifest["verification"]["operators"]
    assert operators["QLinearConv"] == 2
    assert "Clip" not in operators  # the rounding to the layer's output does its work
    assert result.manifest["results"]["sqnr_db"] > 25


@pytest.mark.slow
def test_an_input_without_axes_is_quantized_as_others_are(tmp_path: Path) -> None:
    graph = "g (float[N,48] x, float speed) => (float[N,24] y) { h = Gemm(x, w, b) f = Mul(h, speed) y = MatMul(f, v) }"
    model = proto(graph, w=weight(48, 96), b=weight(96), v=weight(96, 24))
    data = [{"x": x[None], "speed": np.float32(0.8 + 0.01 * i)} for i, x in enumerate(samples(48))]
    artifact = compiled(model, data, tmp_path, "30%", activations="integer")
    assert any(site["site"] == "speed" for site in artifact.plan["activations"])
    held_back = {"x": samples(48, seed=8)[:1], "speed": np.array(0.9, np.float32)}
    assert relative([Runner(model).run(held_back)["y"]], [artifact.run(held_back)["y"]]) < 0.1


def test_a_transposed_convolution_in_float_is_named(tmp_path: Path) -> None:
    graph, weights, shape, budget, _ = KINDS["another transposed convolution"]
    assert shape is not None
    result = compiled(proto(graph, **weights), samples(*shape), tmp_path, budget)
    assert result.manifest["float_operators"] == {"ConvTranspose": 1, "Relu": 1}


def test_a_model_without_weights_passes_through(tmp_path: Path) -> None:
    model = proto("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }")
    result = compiled(model, samples(8), tmp_path)
    x = samples(8, seed=3)
    assert np.array_equal(result.run({"x": x})["y"], np.maximum(x, 0))
    assert result.manifest["weights_by_format"] == {}


def test_a_model_without_weights_cannot_shrink(tmp_path: Path) -> None:
    model = proto("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }")
    with pytest.raises(Infeasible, match="graph text and interface"):
        compiled(model, samples(8), tmp_path, "25%")


def test_a_model_without_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no nodes"):
        compiled(proto("g (float[N,8] x) => (float[N,8] x) { }"), samples(8), tmp_path)


def test_a_model_of_zeros_is_not_called_inaccurate(tmp_path: Path) -> None:
    zeros = np.zeros((64, 64), np.float32)
    model = proto("g (float[N,64] x) => (float[N,64] y) { y = Gemm(x, w) }", w=zeros)
    result = compiled(model, samples(64), tmp_path)
    assert not result.run({"x": samples(64)})["y"].any()
    assert "agrees poorly" not in result.summary()
