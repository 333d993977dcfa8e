"""The QDQ form of a lowered graph: the numbers of the packed file, in ONNX Runtime bit by bit."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from drawing import draw
from graphs import noise, parse
from lowering import CONSTANTS, RESIDUAL, TABLE_CONSTANTS, TABLES, WORDS, Quantized, quantized, samples
from mostly_slow import mostly_slow
from qdq_forms import both

from ptqc.codegen.qdq.rules import RULES, violations
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Feeds, Runner, tensors_of
from ptqc.formats import Codebook, Format, Integer
from ptqc.ir import reference
from ptqc.ir.layers import find_layers, find_weights
from ptqc.passes.canonicalize.rewrites import default_rewrites
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


def check(network: Quantized, feeds: list[Feeds]) -> onnx.ModelProto:
    """The QDQ model, which breaks no rule, and gives what the packed file gives up to the rounding of outputs."""
    before = ir.to_proto(network.lowered.model), list(map(str, reference.steps(network.lowered)))
    model, packed, params = both(network, feeds)
    assert (ir.to_proto(network.lowered.model), list(map(str, reference.steps(network.lowered)))) == before
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
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8), forms=form)
    model = check(network, samples(1, 3, 8, 8))
    assert not model.functions
    assert not [one for rule in ("openvino", "qnn") for one in violations(model, rule)]


def test_operators_that_move_codes_are_wrapped() -> None:
    """Each stands between DequantizeLinear and QuantizeLinear; what a Pad adds and Clip's bounds are real values."""
    feeds = samples(1, 4, 8, 8)
    network = quantized(parse(MOVES, **MOVED), feeds)
    before = {
        node.outputs[0].dtype for node in network.lowered.model.graph if node.op_type in ("Pad", "Clip", "Concat")
    }
    assert before == {ir.DataType.UINT8}
    model = check(network, feeds)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type in ("Pad", "MaxPool", "Clip", "Transpose", "Concat"):
            read = node.input if node.op_type == "Concat" else node.input[:1]
            assert {makers[name] for name in read} == {"DequantizeLinear"}
    assert Counter(makers.values())["Transpose"] == 1


def test_shapes_are_fixed_and_the_rest_of_the_interface_stays() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(1, 3, 8, 8))
    model = check(network, samples(1, 3, 8, 8))
    sizes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert sizes == {"x": [1, 3, 8, 8], "y": [1, 5]}


def test_tables_and_layers_in_float_are_no_dequantized_operands() -> None:
    """ONNX Runtime would make operators of them that round activations."""
    forms = {"embedding": Integer(3), "m": Integer(3), "h": Integer(3)}
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    model = check(network, WORDS[:1])
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


@pytest.mark.parametrize("seed", mostly_slow(range(12), *range(5)))
def test_random_networks(seed: int) -> None:
    proto, feeds = draw(seed)
    random = np.random.default_rng(seed)
    model = ir.from_proto(proto)
    run_rewrites(model, default_rewrites(), feeds[:1])
    names = [weight.name for weight in find_weights(model, find_layers(model))]
    forms = {name: Integer(int(random.integers(2, 9))) for name in names}
    floating = random.random() if random.random() < 0.3 else 0.0
    network = quantized(model, feeds, forms=forms, keep_float=lambda _site: bool(random.random() < floating))
    check(network, [each for each in feeds if each["x"].shape == feeds[0]["x"].shape])


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
