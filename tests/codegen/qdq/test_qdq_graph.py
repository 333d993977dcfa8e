"""The QDQ form of a lowered graph: the numbers of the packed file, in ONNX Runtime bit by bit."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from drawing import draw
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES, WORDS, Quantized, observed, quantized, samples

from ptqc.calibration.ranges import affine_params
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.qdq.graph import open_outputs, qdq_model
from ptqc.codegen.qdq.rules import RULES, QdqGraph, violations
from ptqc.codegen.qdq.symmetric import for_tensorrt, signed
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import UINT8, Codebook, Format, Integer, QuantParams
from ptqc.ir import reference
from ptqc.ir.layers import find_layers, find_weights
from ptqc.ir.sites import find_kernels, find_sites, useful_sites
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.canonicalize.rewrites import default_rewrites
from ptqc.passes.quantize.phases import PlanWithParameters
from ptqc.passes.runner import run_rewrites

MOVES = """g (float[N, 4, 8, 8] x) => (float[N, 5, 4, 4] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    p = Pad(a, pads)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (p)
    c = Clip(m, low, high)
    t = Transpose <perm = [0, 1, 3, 2]> (c)
    k = Concat <axis = 1> (t, c)
    y = Conv(k, v)
}"""
MOVED: dict[str, np.ndarray | np.generic] = {
    "w": noise(4, 4, 3, 3, seed=1),
    "b": noise(4, seed=2),
    "v": noise(5, 8, 2, 2, seed=3),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    "low": np.float32(-0.4),
    "high": np.float32(0.9),
}


def both(
    made: Quantized, feeds: list[Feeds], params: dict[str, QuantParams] | None = None
) -> tuple[onnx.ModelProto, list[Feeds], Mapping[str, QuantParams]]:
    """The QDQ model, what the packed file gives, and parameters of the outputs that only the QDQ model rounds.

    params: those, where they are not to be what the packed file gives.
    """
    exported = export(made.lowered, made.model)
    packed = [tensors_of(Runner(exported.proto).run(each)) for each in feeds]
    known, params = params, dict(params or {})
    for name in open_outputs(made.lowered) if known is None else ():
        values = np.concatenate([outputs[name].ravel() for outputs in packed])
        scale, zero = affine_params(float(values.min()), float(values.max()), 8)
        params[name] = QuantParams(UINT8, float(scale), zero)
    return qdq_model(made.lowered, exported, feeds[0], packed[0], params), packed, params


def check(made: Quantized, feeds: list[Feeds]) -> onnx.ModelProto:
    """The QDQ model, which breaks no rule, and gives what the packed file gives up to the rounding of outputs."""
    before = ir.to_proto(made.lowered.model), list(map(str, reference.steps(made.lowered)))
    model, packed, params = both(made, feeds)
    assert (ir.to_proto(made.lowered.model), list(map(str, reference.steps(made.lowered)))) == before
    onnx.checker.check_model(model, full_check=True)
    assert not violations(model, "onnxruntime")
    runner = Runner(model)
    for each, wanted in zip(feeds, packed, strict=True):
        outputs = tensors_of(runner.run(each))
        for name, array in wanted.items():
            np.testing.assert_array_equal(outputs[name], params[name].rounded(array) if name in params else array)
    return model


@pytest.mark.parametrize("form", [Integer(8), Integer(4), Codebook(3)], ids=str)
def test_a_residual_network(form: Format) -> None:
    """Weights are int8 in whatever format they were packed; Relu is absorbed; the last layer's output is rounded."""
    made = quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8), forms=form)
    model = check(made, samples(1, 3, 8, 8))
    assert not model.functions
    assert not [one for rule in ("openvino", "qnn") for one in violations(model, rule)]


def test_operators_that_move_codes_are_wrapped() -> None:
    """Each stands between DequantizeLinear and QuantizeLinear; what a Pad adds and Clip's bounds are real values."""
    feeds = samples(1, 4, 8, 8)
    made = quantized(parse(MOVES, **MOVED), feeds)
    before = {node.outputs[0].dtype for node in made.lowered.model.graph if node.op_type in ("Pad", "Clip", "Concat")}
    assert before == {ir.DataType.UINT8}
    model = check(made, feeds)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("Pad", "MaxPool", "Clip", "Transpose", "Concat"):
            read = node.input if node.op_type == "Concat" else node.input[:1]
            assert {makers[name] for name in read} == {"DequantizeLinear"}
    assert Counter(makers.values())["Transpose"] == 1


def test_shapes_are_fixed_and_the_rest_of_the_interface_stays() -> None:
    made = quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8))
    model = check(made, samples(1, 3, 8, 8))
    sizes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert sizes == {"x": [1, 3, 8, 8], "y": [1, 5]}


def test_tables_and_layers_in_float_are_no_dequantized_operands() -> None:
    """ONNX Runtime would make operators of them that round activations."""
    forms = {"embedding": Integer(3), "m": Integer(3), "h": Integer(3)}
    made = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    model = check(made, WORDS[:1])
    assert "DequantizeLinear" not in {node.op_type for node in model.graph.node}


def test_weights_of_recurrent_operators_are_constants_for_openvino() -> None:
    """Which takes no others; the numbers are the same."""
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    import openvino

    model = parse("g (float[5, 1, 8] x) => (float[5, 1, 1, 16] y) { y = GRU <hidden_size = 16> (x, w, r) }",
                  w=noise(1, 48, 8, seed=1), r=noise(1, 48, 16, seed=2))  # fmt: skip
    feeds = samples(5, 1, 8)
    made = check(quantized(model, feeds, forms=Integer(6)), feeds)
    compiled = openvino.Core().compile_model(openvino.Core().read_model(made.SerializeToString()), "CPU")
    (wanted,) = Runner(made).run(feeds[0]).values()
    assert relative([wanted], [np.array(compiled(feeds[0])[0])]) < 1e-2


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    proto, feeds = draw(seed)
    random = np.random.default_rng(seed)
    model = ir.from_proto(proto)
    run_rewrites(model, default_rewrites(), feeds[:1])
    names = [weight.name for weight in find_weights(model, find_layers(model))]
    forms = {name: Integer(int(random.integers(2, 9))) for name in names}
    floating = random.random() if random.random() < 0.3 else 0.0
    made = quantized(model, feeds, forms=forms, keep_float=lambda _site: bool(random.random() < floating))
    check(made, [each for each in feeds if each["x"].shape == feeds[0]["x"].shape])


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


# Symmetric activations


def symmetric(powers: bool) -> Quantized:
    """A residual network whose activations have the zero point 128, with powers of two as scales or without."""
    model, feeds = parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8)
    layers = find_layers(model)
    kernels = find_kernels(model, layers)
    sites = useful_sites(find_sites(model, kernels), kernels, {layer.name for layer in layers})
    reach = {name: max(-one.low, one.high) / 127 for name, one in observed(model, feeds, sites).items()}
    steps = {name: float(2.0 ** np.ceil(np.log2(step))) if powers else step for name, step in reach.items()}
    params = {name: QuantParams(UINT8, float(np.float32(step)), 128) for name, step in steps.items()}
    made = quantized(model, feeds, params=params)
    if not powers:
        return made
    weights = {
        name: replace(one, scale=(2.0 ** np.ceil(np.log2(one.scale))).astype(np.float32))
        for name, one in made.tuned.weights.items()
    }
    tuned = replace(made.tuned, weights=weights)
    lowered = Lower().apply(PlanWithParameters(model, made.plan, tuned)).made
    return replace(made, tuned=tuned, lowered=lowered)


def symmetric_model() -> onnx.ModelProto:
    """As the QDQ model of uint8 that forms for TensorRT and XDNA are made of."""
    return both(symmetric(powers=True), samples(1, 3, 8, 8), {"y": QuantParams(UINT8, 0.0625, 128)})[0]


def test_int8_around_0_means_the_same() -> None:
    """Up to the roundings of ONNX Runtime, whose kernels for these are others."""
    model = symmetric_model()
    other = signed(model)
    feeds = samples(1, 3, 8, 8)[0]
    wanted, found = (Runner(each).run(feeds)["y"] for each in (model, other))
    assert relative([wanted], [found]) < 0.02
    zeros = [np.asarray(QdqGraph(other).array(node.input[2])) for node in QdqGraph(other).conversions()]
    assert {(zero.dtype, int(zero)) for zero in zeros} == {(np.dtype(np.int8), 0)}


def test_for_tensorrt_relu_is_behind_its_layer_and_biases_are_real() -> None:
    model = both(symmetric(powers=False), samples(1, 3, 8, 8))[0]
    other = for_tensorrt(model)
    feeds = samples(1, 3, 8, 8)[0]
    wanted, found = (Runner(each).run(feeds)["y"] for each in (model, other))
    assert relative([wanted], [found]) < 0.05
    makers = {name: node.op_type for node in other.graph.node for name in node.output}
    assert {makers[node.input[0]] for node in other.graph.node if node.op_type == "Relu"} == {"Conv", "Add"}
    assert len(other.graph.node) < len(model.graph.node)
