"""Codes of 16 bits in QDQ models: one type for each node, and what the real values were but for rounding."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import compiled, proto, residual
from compiling import samples as images
from graphs import noise, parse
from lowering import CONSTANTS, FLOAT_GRAPHS, RESIDUAL, SMALL, quantized, samples
from mostly_slow import mostly_slow
from qdq_forms import both

from ptqc.codegen.qdq.rules import EIGHT_BITS, WIDE, QdqGraph, violations
from ptqc.codegen.qdq.wide import MASKED, ValueRange, WideGraph, widths_of, with_16_bits
from ptqc.errors import TargetError
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of


def widened(model: onnx.ModelProto, feeds: list[Feeds]) -> onnx.ModelProto:
    """The model with codes of 16 bits, in the ranges of these samples."""
    graph = WideGraph.of(model)
    ranges = {name: ValueRange() for name in graph.unrounded}
    outer = {value.name for value in (*model.graph.input, *model.graph.output)}
    runner = Runner(model, sorted(ranges.keys() - outer))
    for each in feeds:
        values = {**each, **runner.run(each)}
        for name, one in ranges.items():
            one.update(np.asarray(values[name]))
    result = with_16_bits(graph, ranges)
    onnx.checker.check_model(result, full_check=True)
    return result


def types(model: onnx.ModelProto) -> set[str]:
    graph = QdqGraph(model)
    return {str(graph.code_type(node)) for node in graph.conversions()}


@pytest.mark.parametrize("kind", FLOAT_GRAPHS)
@pytest.mark.parametrize("seed", mostly_slow(range(3), 2))
def test_what_was_real_is_so_but_for_rounding(kind: str, seed: int) -> None:
    """Whatever the plan leaves in float."""
    model, feeds = parse(FLOAT_GRAPHS[kind], **SMALL), samples(1, 6, 8, 8)
    rng = np.random.default_rng(seed)
    share = (0.3, 0.7, 1.0)[seed]
    network = quantized(model, feeds, keep_float=lambda _name: bool(rng.random() < share))
    before, _, _ = both(network, feeds, {}, wide=True)
    after = widened(before, feeds)
    assert not violations(after, "qnn")
    for each in feeds:
        wanted, result = (list(tensors_of(Runner(one).run(each)).values()) for one in (before, after))
        assert relative(wanted, result) < 2e-2  # a value in the middle of two codes of 8 bits may take either
    if share == 1.0:
        assert types(after) == {"uint16"}
        assert relative(wanted, result) < 2e-4


def test_a_region_is_on_16_bits_and_the_rest_on_8() -> None:
    feeds = samples(1, 3, 8, 8)
    network = quantized(parse(RESIDUAL, **CONSTANTS), feeds, keep_float=lambda name: name in ("p", "f", "m", "y"))
    before, _, _ = both(network, feeds, {}, wide=True)
    after = widened(before, feeds)
    assert types(after) == {"uint8", "uint16"}
    assert not violations(after, "qnn")
    assert EIGHT_BITS in {one.rule for one in violations(after, "openvino")}
    graph = QdqGraph(after)
    wide = {node.op_type for node, x, _ in graph.layers() if graph.code_type(x) in WIDE}
    assert {"Conv", "Gemm"} == wide
    # By hand: 4·64·27, 4·64·9, 4·64·4 products on 8 bits; 4·4·16 and 5·8 on 16.
    assert (
        widths_of(after)
        == f"2 of 5 layers with 16-bit activations, {296 / (6912 + 2304 + 1024 + 296):.0%} of the multiplications"
    )
    assert not widths_of(before)


def test_a_code_of_8_bits_is_the_same_number_on_16() -> None:
    feeds = samples(1, 3, 8, 8)
    network = quantized(parse(RESIDUAL, **CONSTANTS), feeds, keep_float=lambda name: name == "y")
    graph = QdqGraph(widened(both(network, feeds, {}, wide=True)[0], feeds))
    conversions = [
        (maker, node)
        for node in graph.conversions()
        if node.op_type == "QuantizeLinear" and graph.code_type(node) in WIDE
        if (maker := graph.makers.get(node.input[0])) is not None and graph.is_real(maker)
    ]
    assert conversions
    for pair in conversions:
        (narrow, zero), (step, middle) = ([np.asarray(graph.array(n)) for n in one.input[1:]] for one in pair)
        numbers = (np.arange(256) - int(zero)) * narrow
        wide = np.rint(numbers / step) + int(middle)
        assert np.array_equal((wide - int(middle)) * step, numbers)
        assert wide.min() >= 0
        assert wide.max() < 2**16


def test_what_a_softmax_makes_0_takes_no_codes() -> None:
    """The range is that of the other values, and a little less for what is masked."""
    seen = ValueRange()
    seen.update(np.array([-3.4e38, 2.0, -1.0], np.float32))
    assert seen.params().low == pytest.approx(-1.5 - MASKED, rel=1e-3)
    assert seen.params().high == pytest.approx(3, rel=1e-2)
    added = ValueRange()
    added.update(np.array([-9995.0, 2.0, -1.0], np.float32))  # a score under a mask of -10,000
    assert added.params() == seen.params()
    assert ValueRange().params().scale > 0


def test_large_numbers_are_no_mask() -> None:
    """Nor is there one where others are as large; a range goes further than on the samples."""
    plain, sound = ValueRange(), ValueRange()
    plain.update(np.array([-5.0, 2.0], np.float32))
    assert plain.params().low == pytest.approx(-7.5, rel=1e-3)
    sound.update(np.array([-32768.0, 32767.0], np.float32))
    assert sound.params().low == pytest.approx(-49152, rel=1e-3)
    sound = ValueRange()
    sound.update(np.array([-32768.0, -3000.0], np.float32))
    assert sound.params().low == pytest.approx(-49152, rel=1e-3)


def test_constants_of_equal_codes_are_several() -> None:
    """A scalar always has the last code, and the HTP compiler gives each constant one scale."""
    text = (
        "g (float[N, 6] x) => (float[N, 6] y) { a = MatMul(x, w) b = Mul(a, half) c = Div(b, third) y = MatMul(c, w) }"
    )
    feeds = [{"x": noise(1, 6, seed=seed)} for seed in range(4)]
    constants = {"w": noise(6, 6), "half": np.array(0.5, np.float32), "third": np.array(0.3, np.float32)}
    network = quantized(parse(text, **constants), feeds, keep_float=lambda _name: True)
    after = widened(both(network, feeds, {}, wide=True)[0], feeds)
    assert not violations(after, "qnn")
    shared = onnx.ModelProto()
    shared.CopyFrom(after)
    scalars = [n for n in shared.graph.node if n.op_type == "DequantizeLinear" and n.input[0].startswith("wide/codes")]
    scalars[1].input[0] = scalars[0].input[0]
    assert "one scale for each constant" in {one.rule for one in violations(shared, "qnn")}


@pytest.mark.parametrize("real", ["q", "t"])
def test_products_of_8_and_16_bits_are_on_16(real: str) -> None:
    """Whichever operand the plan rounds."""
    text = """g (float[N, 6, 8] x) => (float[N, 6, 6] y) {
        q = MatMul(x, w) k = MatMul(x, v) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) y = Softmax(s)
    }"""
    feeds = [{"x": noise(1, 6, 8, seed=seed)} for seed in range(4)]
    model = parse(text, w=noise(8, 8, scale=0.3), v=noise(8, 8, seed=1, scale=0.3))
    left = {"q": {"q", "s"}, "t": {"k", "t", "s"}}[real]
    network = quantized(model, feeds, keep_float=lambda name: name in left)
    before = both(network, feeds, {}, wide=True)[0]
    after = widened(before, feeds)
    assert types(after) == {"uint8", "uint16", "int16"}
    assert not violations(after, "qnn")
    wanted, result = (Runner(one).run(feeds[0])["y"] for one in (before, after))
    assert relative([wanted], [result]) < 2e-2


def test_operators_of_several_operands_are_on_16_bits() -> None:
    """Those that the table of operators does not have, too."""
    text = """g (float[N, 6] x) => (float[N, 6] y) {
        a = MatMul(x, w) b = MatMul(x, v) c = Max(a, b) d = Greater(a, b) e = Where(d, c, low) y = MatMul(e, w)
    }"""
    feeds = [{"x": noise(1, 6, seed=seed)} for seed in range(4)]
    model = parse(text, w=noise(6, 6), v=noise(6, 6, seed=1), low=np.float32(-0.5))
    before = both(quantized(model, feeds, keep_float=lambda _name: True), feeds, {}, wide=True)[0]
    graph = QdqGraph(widened(before, feeds))
    for node in graph.operators():
        if node.op_type in ("Max", "Where"):
            assert all(graph.makers[name].op_type in ("DequantizeLinear", "Greater") for name in node.input)


@pytest.mark.parametrize("lowest", [-3e38, -1e4])
def test_attention_with_a_mask_is_close(lowest: float) -> None:
    graph = """g (float[N, 6, 8] x, float[N, 1, 6] mask) => (float[N, 6, 8] y) {
        q = MatMul(x, w) k = MatMul(x, v) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t)
        n = Mul(mask, lowest) a = Add(s, n) c = Add(a, causal) p = Softmax <axis = -1> (c) y = MatMul(p, x)
    }"""
    constants = {
        "w": noise(8, 8, scale=0.3),
        "v": noise(8, 8, seed=1, scale=0.3),
        "lowest": np.array(lowest, np.float32),
        "causal": np.triu(np.full((6, 6), lowest / 2, np.float32), 4),
    }
    mask = np.array([[[0, 0, 0, 0, 1, 1]]], np.float32)
    feeds = [{"x": noise(1, 6, 8, seed=seed), "mask": mask} for seed in range(4)]
    network = quantized(parse(graph, **constants), feeds, keep_float=lambda _name: True)
    before, _, _ = both(network, feeds, {}, wide=True)
    after = widened(before, feeds)
    wanted, result = (Runner(one).run(feeds[0])["y"] for one in (before, after))
    assert relative([wanted], [result]) < 1e-3
    wide = QdqGraph(after)
    numbers = [np.asarray(wide.array(n.input[1])).max() for n in wide.nodes if n.op_type == "DequantizeLinear"]
    assert max(numbers) * 2**16 < 1e3  # constants of a mask take no codes either


def test_products_are_compared_at_full_width(tmp_path: Path) -> None:
    """ONNX Runtime, if it optimizes, rounds what a MatMul reads to 8 bits."""
    text = "g (float[N, 16] x) => (float[N, 16] y) { a = MatMul(x, w) b = Tanh(a) y = MatMul(b, v) }"
    model = proto(text, w=noise(16, 16, scale=0.3), v=noise(16, 16, seed=1, scale=0.3))
    options = {"target": "qdq", "runtime": "qnn", "verify_in": "", "activations": "float"}
    artifact = compiled(model, images(16), tmp_path, "90%", **options)
    run = artifact.manifest["targets"]["qdq"]["runtimes"]["onnxruntime"]
    assert float(run["note"].removeprefix("outputs within ").split()[0]) < 1e-3


@pytest.mark.slow
def test_it_runs_on_the_npu(tmp_path: Path) -> None:
    """All layers on integers; OpenVINO, which computes garbage of 16 bits without a message, is not asked."""
    pytest.importorskip("onnxruntime_qnn", reason="needs pip install 'ptqc[qnn]'")
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    options = {"target": "qdq", "runtime": "qnn", "activations": "float"}
    artifact = compiled(residual(), images(3, 8, 8), tmp_path / "made", "30%", **options)
    document = artifact.manifest["targets"]["qdq"]
    assert document["activations"].startswith("4 of 4 layers with 16-bit activations")
    assert document["runtimes"]["qnn"]["placement"] == "4 of 4 layers on integers"
    assert document["runtimes"]["openvino"]["note"].startswith("not verified: it takes no activations of 16 bits")
    with pytest.raises(TargetError, match="takes no activations of 16 bits"):
        compiled(residual(), images(3, 8, 8), tmp_path / "other", "30%", **options, verify_in="openvino")


def test_the_second_of_two_activations_has_signed_codes() -> None:
    """Of unsigned ones Qualcomm's NPU keeps about 8 bits."""
    graph = "g (float[N, 6, 8] x) => (float[N, 6, 6] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(x, t) }"
    feeds = [{"x": noise(1, 6, 8, seed=seed)} for seed in range(4)]
    before = both(quantized(parse(graph), feeds), feeds, {}, wide=True)[0]
    after = widened(before, feeds)
    graph_of = QdqGraph(after)
    (product,) = (node for node in graph_of.nodes if node.op_type == "MatMul")
    kinds = [graph_of.code_type(graph_of.makers[name]) for name in product.input]
    assert kinds == [np.uint16, np.int16]
    assert not violations(after, "qnn")
    wanted, result = (list(Runner(one).run(feeds[0]).values()) for one in (before, after))
    assert relative(wanted, result) < 1e-3
