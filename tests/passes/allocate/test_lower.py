import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import noise, parse
from lowering import (
    CONSTANTS,
    GRAPHS,
    PALETTE,
    RESIDUAL,
    SEVEN,
    SMALL,
    SUBGRAPH,
    TABLE_CONSTANTS,
    TABLES,
    WORDS,
    C,
    Quantized,
    Y,
    quantized,
    samples,
)

from ptqc.execution.onnxruntime import Feeds, Runner, open_proto, run, session_options
from ptqc.formats import (
    BFLOAT16,
    FLOAT8_ACTIVATION,
    FLOAT16,
    FLOAT32,
    UINT8,
    FloatActivation,
    Format,
    Integer,
    QuantParams,
    to_bfloat16,
)
from ptqc.ir import reference
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.quantize.phases import PlanWithParameters

pytestmark = pytest.mark.processor


def check(
    network: Quantized, feeds: list[Feeds], tolerance: float = 0.02, runs: tuple[bool, ...] = (False, True)
) -> set[str]:
    """The lowered graph is valid, keeps the interface and computes what it says; returns the optimized operators.

    runs: whether ONNX Runtime optimizes. Packed constants of float layers are folded in the delivered file only: here
    the runtime would take them for its own integer kernels.
    """
    proto = ir.to_proto(network.lowered.model)
    onnx.checker.check_model(proto, full_check=True)
    before = ir.to_proto(network.model)
    for side in ("input", "output"):
        old, new = (getattr(p.graph, side) for p in (before, proto))
        kinds = [[(v.name, v.type.tensor_type.elem_type) for v in values] for values in (old, new)]
        assert kinds[0] == kinds[1]
    for one in feeds:
        expected = network.simulate(one)
        for optimize in runs:
            result = network.run(one, optimize=optimize)
            assert list(result) == list(expected)
            for name, value in expected.items():
                assert result[name].shape == value.shape
                distance = np.sqrt(np.mean(np.square(result[name] - value)) / max(np.mean(np.square(value)), 1e-9))
                assert distance < tolerance, (name, optimize)
    free = {kernel.node for kernel in network.plan.kernels if kernel.float_output}
    assert parity(network, feeds[0]) > 0 or set(network.plan.integer) <= free
    return operators(network.lowered.model)


def parity(network: Quantized, feeds: Feeds) -> int:
    """Kernels compared with the integer reference, each given the integers that ONNX Runtime gave it."""
    steps = list(reference.steps(network.lowered))
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    values = Runner(network.lowered.model, names).run(feeds, names) if names else {}
    for step in steps:
        low, high = reference.bounds(step, values)
        assert ((low <= values[step.output]) & (values[step.output] <= high)).all(), step.name
    return len(steps)


def operators(model: ir.Model) -> set[str]:
    """What ONNX Runtime makes of a model."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        open_proto(ir.to_proto(model), options)
        return {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}


INTEGER = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearAdd", "QGemm", "QLinearGlobalAveragePool"}
MOVES = {"MaxPool", "NhwcMaxPool", "Concat", "Reshape", "Flatten", "Transpose", "QLinearConcat", "Squeeze"}


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_a_residual_network_runs_on_integer_kernels(bits: int) -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(bits))
    left = check(network, [*samples(2, 3, 8, 8), *samples(1, 3, 8, 8)])
    assert left <= INTEGER | MOVES
    assert set(network.lowered.integer) == {"c", "d", "e", "s", "f", "m", "y"}
    assert parity(network, samples(2, 3, 8, 8)[0]) == 7
    assert set(network.lowered.formats.values()) == {Integer(bits)}


def test_eight_bits_are_close_to_float() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    network = quantized(model, samples(2, 3, 8, 8), forms=SEVEN)
    for feeds in samples(2, 3, 8, 8):
        expected = run(model, feeds)["y"]
        assert np.abs(network.run(feeds)["y"] - expected).max() < 0.1 * np.abs(expected).max()


def test_the_float_model_is_left_as_it_is() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    quantized(model, samples(2, 3, 8, 8))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("kept", ["x", "r", "q", "t", "f"])
def test_parts_may_stay_float(kept: str) -> None:
    network = quantized(
        parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN, keep_float=lambda site: site == kept
    )
    assert 0 < len(network.plan.integer) < 7
    check(network, samples(2, 3, 8, 8))


def test_all_may_stay_float() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN, keep_float=lambda _site: True)
    assert not network.lowered.codes
    check(network, samples(2, 3, 8, 8), 1e-5)


@pytest.mark.parametrize(
    ("form", "agrees", "differs"),
    [pytest.param(BFLOAT16, 3e-3, 0.05, marks=pytest.mark.slow), (FLOAT8_ACTIVATION, 0.06, 0.2)],
)
@pytest.mark.parametrize("kind", GRAPHS)
def test_real_numbers_may_be_rounded_to_fewer_digits(
    kind: str, form: FloatActivation, agrees: float, differs: float
) -> None:
    nodes, outputs = GRAPHS[kind]
    model = parse(f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}", **SMALL)
    feeds = samples(2, 6, 8, 8)
    network = quantized(model, feeds, keep_float=lambda _site: True, is_rounded=lambda _: True, to=form)
    assert network.lowered.cast == network.plan.cast
    values = [*network.model.graph.inputs, *(value for node in network.model.graph for value in node.outputs)]
    read = {value.name for value in values if value.uses()}
    roundings = sum(str(node.outputs[0].name).endswith("/cast") for node in network.lowered.model.graph)
    assert roundings == len(network.lowered.cast.keys() & read) > 0
    check(network, feeds, agrees)
    plain = quantized(model, feeds, keep_float=lambda _site: True)
    for one in feeds:  # the rounding is there
        result, real = network.run(one)["y"], plain.run(one)["y"]
        assert 0 < np.abs(result - real).max() < differs * np.abs(real).max()


def test_outputs_themselves_are_not_rounded_to_bfloat16() -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}, float[N, 6, 8, 8] c) {{ {C} y = Conv(c, v) }}", **SMALL)
    network = quantized(model, samples(2, 6, 8, 8), keep_float=lambda _: True, is_rounded=lambda _: True)
    for feeds in samples(2, 6, 8, 8):
        result = network.run(feeds)
        assert not any(np.array_equal(result[name], to_bfloat16(result[name])) for name in ("c", "y"))
        wanted = np.einsum("oi,nihw->nohw", network.tuned.weights["v"].weight[:, :, 0, 0], to_bfloat16(result["c"]))
        np.testing.assert_allclose(result["y"], wanted, atol=1e-5)


@pytest.mark.parametrize("kind", GRAPHS)
def test_lowering(kind: str) -> None:
    nodes, outputs = GRAPHS[kind]
    model = parse(f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}", **SMALL)
    network = quantized(model, samples(2, 6, 8, 8), forms=SEVEN)
    left = check(network, [*samples(2, 6, 8, 8), *samples(1, 6, 8, 8)], 0.05)
    assert "Conv" not in left
    assert len(network.plan.integer) == sum(nodes.count(op) for op in ("Conv(", "Add(", "Mul(", "Pool("))


def test_no_float_operator_is_left_between_layers() -> None:
    nodes = (
        C + "r = Relu(c) p = MaxPool <kernel_shape = [2, 2]> (r) k = Clip(p, low, high) q = Pad(k, pads) y = Conv(q, v)"
    )
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {nodes} }}", **SMALL)
    network = quantized(model, samples(2, 6, 8, 8), forms=SEVEN)
    nodes_of = [node.op_type for node in network.lowered.model.graph]
    assert "Relu" not in nodes_of
    assert nodes_of.count("QuantizeLinear") == 3
    assert nodes_of.count("DequantizeLinear") == 2 + 2 + 1
    assert operators(network.lowered.model) <= INTEGER | MOVES | {"Clip", "Pad"}


def test_a_relu_whose_codes_do_not_saturate_runs_on_codes() -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {C} r = Relu(c) y = Conv(r, v) }}", **SMALL)
    wide = {"r": QuantParams(UINT8, 0.02, 100)}
    network = quantized(model, samples(2, 6, 8, 8), forms=SEVEN, params=wide)
    clip = next(node for node in network.lowered.model.graph if node.op_type == "Clip")
    assert clip.inputs[0] is not None
    maker = clip.inputs[0].producer()
    assert maker is not None
    assert maker.op_type == "QuantizeLinear"
    for feeds in samples(2, 6, 8, 8):
        np.testing.assert_allclose(network.run(feeds)["y"], network.simulate(feeds)["y"], atol=0.05)


def test_a_clip_below_the_largest_code_stays() -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {C} r = Clip(c, zero, high) y = Conv(r, v) }}", **SMALL)
    wide = {"r": QuantParams(UINT8, 0.02, 0)}
    network = quantized(model, samples(2, 6, 8, 8), forms=SEVEN, params=wide)
    assert "Clip" in [node.op_type for node in network.lowered.model.graph]
    for feeds in samples(2, 6, 8, 8):
        np.testing.assert_allclose(network.run(feeds)["y"], network.simulate(feeds)["y"], atol=0.05)


def test_subgraphs_read_the_dequantized_value() -> None:
    network = quantized(parse(SUBGRAPH, **SMALL), [{"x": noise(2, 6, 8, 8), "k": np.array(True)}], forms=SEVEN)
    for choice in (True, False):
        check(network, [{"x": noise(2, 6, 8, 8), "k": np.array(choice)}])


# Weights


@pytest.mark.parametrize("form", [Integer(3), Integer(8), FLOAT16, FLOAT32], ids=str)
def test_tables_and_float_layers(form: Format) -> None:
    forms = {"embedding": form, "m": form, "h": form, "mask": PALETTE}
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    check(network, WORDS, 1e-5, runs=(False,))
    assert set(network.lowered.formats.values()) == ({form, PALETTE} if form.family == "int" else {PALETTE})
    assert network.lowered.layer_constants == {}


def test_a_table_in_front_of_integer_layers() -> None:
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms={"mask": PALETTE, "m": SEVEN, "h": SEVEN})
    assert set(network.plan.integer) == {"z", "y"}
    check(network, WORDS)


def test_a_layer_without_codes_computes_in_float() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    network = quantized(
        model, samples(2, 3, 8, 8), forms={"point": FLOAT16, "w": SEVEN, "depth": SEVEN, "other": FLOAT32}
    )
    assert set(network.plan.integer) == {"c", "d", "s", "m", "y"}
    check(network, samples(2, 3, 8, 8), 1e-4, runs=(False,))
    check(network, samples(2, 3, 8, 8), 0.05, runs=(True,))  # ONNX Runtime rounds the weights of the others to 8 bits


@pytest.mark.parametrize("quantize", [True, False])
def test_a_weight_used_in_two_ways(quantize: bool) -> None:
    """The scales of its table run along an axis that need not be the output channels of either layer."""
    graph = "g (float[N, 20] x) => (float[N, 20] y) { a = MatMul(x, w) r = Relu(a) y = Gemm <transB = 1> (r, w, b) }"
    model = parse(graph, w=noise(20, 20, scale=0.3) * np.linspace(0.1, 2, 20, dtype=np.float32), b=noise(20))
    network = quantized(model, samples(4, 20), forms=SEVEN, keep_float=lambda _site: not quantize)
    check(network, samples(4, 20), runs=(False,))


def test_a_weight_that_another_operator_reads_is_stored_once() -> None:
    graph = "g (float[20, 20] x) => (float[20, 20] y) { a = MatMul(x, w) y = Add(a, w) }"
    model = parse(graph, w=noise(20, 20, scale=0.3))
    feeds = [{"x": noise(20, 20, seed=5)}]
    network = quantized(model, feeds, forms=SEVEN)
    assert set(network.plan.integer) == {"a"}
    check(network, feeds)
    stored = [t.name for t in ir.to_proto(network.lowered.model).graph.initializer if t.dims and np.prod(t.dims) == 400]
    assert stored == ["w/codes"]


def test_a_large_bias_of_a_channel_with_tiny_weights_fits() -> None:
    weight, bias = noise(6, 6, 1, 1), np.arange(6, dtype=np.float32)
    weight[5] *= 1e-11
    model = parse(f"g (float[N, 6, 8, 8] x) => ({Y}) {{ y = Conv(x, w, b) }}", w=weight, b=bias)
    network = quantized(model, samples(2, 6, 8, 8), forms=SEVEN)
    check(network, samples(2, 6, 8, 8))
    np.testing.assert_allclose(network.run(samples(2, 6, 8, 8)[0])["y"][:, 5], 5, atol=0.1)


def test_biases_have_the_scale_of_the_accumulator() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN)
    values = {t.name: onnx.numpy_helper.to_array(t) for t in ir.to_proto(network.lowered.model).graph.initializer}
    makers = {node.output[0]: node for node in ir.to_proto(network.lowered.model).graph.node}
    compared = 0
    for layer in network.plan.layers:
        step = np.float32(network.plan.params[layer.input].scale)
        weight, bias = makers[f"{layer.name}/weight"], makers.get(f"{layer.name}/bias")
        if bias is not None:
            np.testing.assert_array_equal(values[bias.input[1]], step * values[weight.input[1]])
            assert values[bias.input[0]].dtype == np.int32
            compared += 1
    assert compared == 4


def test_new_biases_are_used() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    network = quantized(model, samples(2, 3, 8, 8), forms=SEVEN)
    biases: dict[str, np.ndarray] = {"e": noise(4, seed=20), "y": noise(5, seed=21)}
    tuned = QuantizedParameters(network.tuned.weights, {**network.tuned.biases, **biases})
    changed = Lower().apply(PlanWithParameters(model, network.plan, tuned)).output
    result = Runner(changed.model).run(samples(2, 3, 8, 8)[0])["y"]
    expected = parse(
        RESIDUAL.replace("Conv(q, point)", "Conv(q, point, eb)"), **{**CONSTANTS, "hb": biases["y"]}, eb=biases["e"]
    )
    again = quantized(expected, samples(2, 3, 8, 8), forms=SEVEN, params=network.plan.activations)
    np.testing.assert_allclose(result, again.run(samples(2, 3, 8, 8)[0])["y"], atol=1e-5)
    assert changed.layer_constants["e/weight"] == "e/bias"
    assert network.lowered.layer_constants["e/weight"] is None


def test_names_of_the_model_are_not_taken() -> None:
    """A model may name its own values as lowering names what it adds."""
    nodes = "c = Conv(x, w, 'c/bias') 'c/codes' = Relu(c) 'x/real' = Conv('c/codes', v) y = Tanh('x/real')"
    graph = f"g (float[N, 6, 8, 8] x) => ({Y}) {{ {nodes} }}".replace("'", "")
    names = {"c/bias": "cb", "c/codes": "cc", "x/real": "xr"}
    for name, short in names.items():
        graph = graph.replace(name, short)
    proto = ir.to_proto(parse(graph, w=SMALL["w"], v=SMALL["v"], cb=noise(6, seed=3)))
    text = {short: name for name, short in names.items()}
    for tensor in proto.graph.initializer:
        tensor.name = text.get(tensor.name, tensor.name)
    for value in proto.graph.value_info:
        value.name = text.get(value.name, value.name)
    for node in proto.graph.node:
        node.input[:] = [text.get(name, name) for name in node.input]
        node.output[:] = [text.get(name, name) for name in node.output]
    for kept in ("none", "c/codes", "x"):
        made = quantized(ir.from_proto(proto), samples(2, 6, 8, 8), forms=SEVEN, keep_float=kept.__eq__)
        made = replace(
            made, tuned=QuantizedParameters(made.tuned.weights, {**made.tuned.biases, "c": noise(6, seed=4)})
        )
        made = replace(made, lowered=Lower().apply(PlanWithParameters(made.model, made.plan, made.tuned)).output)
        result = made.run(samples(2, 6, 8, 8)[0])["y"]
        other = parse(graph, w=SMALL["w"], v=SMALL["v"], cb=noise(6, seed=4))
        np.testing.assert_allclose(result, run(other, samples(2, 6, 8, 8)[0])["y"], atol=0.1)


def test_codes_are_rounded_again_between_two_scales() -> None:
    graph = (
        "g (float[N, 3, 8, 8] x) => (float[N, 4, A, B] y, float[N, 4, A, B] z) { c = Conv (x, w) d = Sigmoid(c) "
        "m = MaxPool <kernel_shape = [2, 2]> (d) y = Conv (m, v) z = Conv (d, v) }"
    )
    model = parse(graph, w=noise(4, 3, 1, 1), v=noise(4, 4, 1, 1, seed=1))
    params = {"d": QuantParams(UINT8, 1 / 255, 0), "m": QuantParams(UINT8, 1 / 200, 10)}
    network = quantized(model, samples(1, 3, 8, 8), params=params, fused=True)
    check(network, samples(1, 3, 8, 8))
    assert network.lowered.codes.keys() == {"x", "d", "m"}
