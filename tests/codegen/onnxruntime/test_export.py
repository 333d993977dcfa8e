import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import noise, parse
from kernels import run_optimized
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
    Quantized,
    quantized,
    samples,
)
from onnx import helper

from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.unpack_functions import DOMAIN
from ptqc.execution.onnxruntime import Feeds, Runner
from ptqc.formats import FLOAT16, FLOAT32, Format, Integer
from ptqc.ir import reference
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.quantize.phases import PlanWithParameters

pytestmark = pytest.mark.processor

UNPACKING = {"BitShift", "Sign", "BitwiseAnd", "BitwiseOr", "Cast", "Sub", "Mul", "Slice", "ReduceProd", "Round"}


def exported(network: Quantized) -> Exported:
    return export(network.lowered, network.model)


def check(network: Quantized, feeds: list[Feeds], tolerance: float = 1e-5) -> set[str]:
    """The file is valid, has the model's interface, and computes what the lowered graph says; returns its kernels."""
    file = exported(network)
    proto = onnx.load_from_string(file.data)
    onnx.checker.check_model(proto)
    before = ir.to_proto(network.model)
    assert list(proto.graph.input) == list(before.graph.input)
    assert list(proto.graph.output) == list(before.graph.output)
    runner = Runner(proto)
    for one in feeds:
        expected, result = network.run(one, optimize=False), runner.run(one)
        assert list(result) == list(expected)
        for name, value in expected.items():
            distance = np.sqrt(np.mean(np.square(result[name] - value)) / max(np.mean(np.square(value)), 1e-9))
            assert distance < tolerance, name
    parity(network, file, feeds[0])
    _, operators = run_optimized(file.data, feeds[0]) if len(before.graph.output) == 1 else (None, set())
    return operators


def parity(network: Quantized, file: Exported, feeds: Feeds) -> None:
    """Every integer kernel of the file gives the reference's integers for the integers it was given."""
    steps = list(reference.steps(network.lowered))
    names = sorted({name for step in steps for name in (*step.inputs, step.output)})
    short = [file.renamed[name] for name in names]
    result = Runner(file.proto, short).run(feeds, short) if short else {}
    values = {name: result[other] for name, other in zip(names, short, strict=True)}
    for step in steps:
        low, high = reference.bounds(step, values)
        assert ((low <= values[step.output]) & (values[step.output] <= high)).all(), step.name


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_residual_network(bits: int) -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(bits))
    operators = check(network, [*samples(2, 3, 8, 8), *samples(1, 3, 8, 8)], 0.03)
    assert not operators & (UNPACKING | {"Conv", "Gemm", "Add", "GlobalAveragePool"})
    assert operators >= {"QLinearConv", "QGemm", "QLinearAdd", "QLinearGlobalAveragePool"}


def test_formats_of_every_kind_side_by_side() -> None:
    forms: dict[str, Format] = {
        "w": Integer(3),
        "depth": FLOAT16,
        "point": Integer(2),
        "other": FLOAT32,
        "head": Integer(5),
    }
    network = quantized(
        parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=forms, keep_float=lambda site: site in ("q", "f")
    )
    check(network, samples(2, 3, 8, 8), 0.03)
    assert {function.name for function in exported(network).functions} == {"L", "Lm", "F04"}


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs(kind: str) -> None:
    nodes, outputs = GRAPHS[kind]
    model = parse(f"g (float[N, 6, 8, 8] x) => ({outputs}) {{ {nodes} }}", **SMALL)
    for keep in (lambda _site: False, lambda _site: True):
        network = quantized(model, samples(2, 6, 8, 8), forms=Integer(3), keep_float=keep)
        operators = check(network, samples(2, 6, 8, 8), 0.05)
        assert not operators & (UNPACKING - set(nodes.replace("(", " ").split()))


@pytest.mark.parametrize("form", [Integer(3), Integer(8), FLOAT16, FLOAT32], ids=str)
def test_tables(form: Format) -> None:
    forms = {"embedding": form, "m": form, "h": form, "mask": PALETTE}
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms=forms, keep_float=lambda _site: True)
    operators = check(network, WORDS)
    assert operators == {"Gather", "MatMul", "Add"}


def test_a_table_in_front_of_integer_layers() -> None:
    network = quantized(parse(TABLES, **TABLE_CONSTANTS), WORDS, forms={"mask": PALETTE, "m": SEVEN, "h": SEVEN})
    assert "MatMulIntegerToFloat" in check(network, WORDS, 0.03)


@pytest.mark.parametrize("quantize", [True, False])
def test_a_weight_used_in_two_ways(quantize: bool) -> None:
    graph = "g (float[N, 20] x) => (float[N, 20] y) { a = MatMul(x, w) r = Relu(a) y = Gemm <transB = 1> (r, w, b) }"
    model = parse(graph, w=noise(20, 20, scale=0.3) * np.linspace(0.1, 2, 20, dtype=np.float32), b=noise(20))
    network = quantized(model, samples(4, 20), forms=SEVEN, keep_float=lambda _site: not quantize)
    check(network, samples(4, 20), 0.03)


def test_subgraphs() -> None:
    feeds: list[Feeds] = [{"x": noise(2, 6, 8, 8), "k": np.array(choice)} for choice in (True, False)]
    check(quantized(parse(SUBGRAPH, **SMALL), feeds, forms=Integer(4)), feeds, 0.03)


def test_a_packed_table_in_a_subgraph() -> None:
    graph = """g (float[N, 20] x, bool k) => (float[N, 20] y) {
        y = If (k) <
            then_branch = then () => (float[N, 20] a) { a = MatMul(x, w) },
            else_branch = other () => (float[N, 20] b) { c = Mul(x, half) b = Neg(c) }
        >
    }"""
    feeds: list[Feeds] = [{"x": noise(2, 20), "k": np.array(choice)} for choice in (True, False)]
    network = quantized(parse(graph, w=noise(20, 20), half=np.array(0.5, np.float32)), feeds, forms=Integer(4))
    check(network, feeds)
    assert len(exported(network).proto.graph.initializer) == 6


def test_the_same_graph_gives_the_same_bytes() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    first, second = (exported(quantized(model, samples(2, 3, 8, 8), forms=Integer(4))).data for _ in range(2))
    assert first == second


INTERFACE = """<ir_version: 10, opset_import: ["": 20], metadata_props: ["author": "me", "labels": "a,b"]>
network (float[batch, 6, 8, width] x, int64[1] k) => (float[batch, 6, H, W] result, int64[1] n) {
    c = Conv(x, w)
    result = Relu(c)
    n = Identity(k)
}"""


def test_the_interface_is_kept() -> None:
    proto = onnx.parser.parse_model(INTERFACE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(SMALL["w"], "w"))
    proto.graph.input[0].doc_string = "pixels"
    feeds: list[Feeds] = [{"x": noise(2, 6, 8, 5), "k": np.array([7])}]
    network = quantized(ir.from_proto(proto), feeds, forms=Integer(4))
    file = exported(network)
    assert list(file.proto.graph.input) == list(proto.graph.input)
    assert list(file.proto.graph.output) == list(proto.graph.output)
    assert {p.key: p.value for p in file.proto.metadata_props} == {"author": "me", "labels": "a,b"}
    assert (file.proto.producer_name, file.proto.opset_import[0].version) == ("ptqc", 19)
    result = Runner(file.proto).run({"x": noise(5, 6, 8, 11), "k": np.array([3])})
    assert result["result"].shape == (5, 6, 8, 11)
    assert result["n"].tolist() == [3]


@pytest.mark.parametrize(
    ("nodes", "opset", "expected"),
    [
        ("y = Conv(x, w)", 18, 18),
        ("y = Conv(x, w)", 20, 19),  # QuantizeLinear changed in 19
        ("y = Conv(x, w)", 21, 21),
        ("c = Conv(x, w) y = Gelu(c)", 20, 20),
    ],
)
def test_the_lowest_opset_that_the_operators_allow(nodes: str, opset: int, expected: int) -> None:
    model = parse(f"g (float[N, 6, 8, 8] x) => (float[N, 6, 8, 8] y) {{ {nodes} }}", opset, w=SMALL["w"])
    proto = exported(quantized(model, samples(2, 6, 8, 8), forms=Integer(4))).proto
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", expected), (DOMAIN, 1)]
    assert proto.ir_version == max(8, helper.find_min_ir_version_for(proto.opset_import[:1]))
    assert {entry.version for function in proto.functions for entry in function.opset_import} == {expected}
    if expected == 18:
        assert proto.ir_version == 8


def test_float_models_stay_at_the_lowest_opset_of_all() -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Tanh(x) }", 20)
    proto = exported(quantized(model, samples(2, 4))).proto
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert not proto.functions


def test_equal_constants_are_stored_once() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(4))
    graph = exported(network).proto.graph
    contents = [(t.data_type, tuple(t.dims), t.raw_data) for t in graph.initializer]
    assert len(set(contents)) == len(contents)
    read = {name for node in graph.node for name in node.input}
    assert {t.name for t in graph.initializer} <= read


def test_names_are_short_and_defaults_left_out() -> None:
    graph = exported(quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(4))).proto.graph
    names = {name for node in graph.node for name in (*node.input, *node.output)} - {"x", "y"}
    assert {len(name) for name in names} == {1, 2}
    of_constants = {tensor.name for tensor in graph.initializer if len(tensor.raw_data) > 4}
    assert {len(name) for name in of_constants} == {2}  # those that differ between plans
    assert not any(node.name or node.doc_string for node in graph.node)
    assert not graph.value_info
    attributes = {(node.op_type, attribute.name) for node in graph.node for attribute in node.attribute}
    assert ("Conv", "dilations") not in attributes
    assert ("Conv", "group") in attributes


def test_zero_points_of_zero_are_left_out_around_convolutions() -> None:
    nodes = "a = Conv (x, w) r = Relu (a) b = Conv (r, w) m = GlobalAveragePool (b) f = Flatten (m) y = Gemm (f, g)"
    model = parse(f"g (float[N, 6, 8, 8] x) => (float[N, 5] y) {{ {nodes} }}", w=noise(6, 6, 3, 3), g=noise(6, 5))
    feeds = samples(2, 6, 8, 8)
    network = quantized(model, feeds, forms=Integer(4))
    graph = exported(network).proto.graph
    readers = {name: node.op_type for node in graph.node for name in node.input}
    inputs = {readers[node.output[0]]: len(node.input) for node in graph.node if node.op_type == "DequantizeLinear"}
    assert inputs == {"Conv": 2, "GlobalAveragePool": 3, "Gemm": 3}  # b has values below 0
    assert {"QLinearConv", "QLinearGlobalAveragePool", "QGemm"} <= check(network, feeds)


def test_names_have_at_least_the_asked_length() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=Integer(4))
    graph = export(network.lowered, network.model, name_length=3).proto.graph
    assert {len(name) for node in graph.node for name in (*node.input, *node.output)} == {1, 3}


def test_attributes_that_say_what_is_the_default_are_left_out() -> None:
    nodes = """
        c = Conv <kernel_shape = [1, 1], strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], group = 1> (x, w)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 0, 0], ceil_mode = 0> (c)"""
    network = quantized(
        parse(f"g (float[N, 6, 8, 8] x) => (float[N, 6, 4, 4] y) {{ {nodes} }}", **SMALL), samples(2, 6, 8, 8)
    )
    graph = exported(network).proto.graph
    attributes = {
        (node.op_type, attribute.name) for node in graph.node for attribute in node.attribute if not node.domain
    }
    assert attributes == {("MaxPool", "kernel_shape"), ("MaxPool", "strides")}


ATTRIBUTES = [
    "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)",
    "y = MaxPool <kernel_shape = [2, 2], strides = [1, 1], dilations = [1, 1], ceil_mode = 0, storage_order = 0> (x)",
    "y = AveragePool <kernel_shape = [2, 2], pads = [0, 0, 0, 0], count_include_pad = 0> (x)",
    "y = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (x)",
    "y = Conv <kernel_shape = [1, 1], strides = [1, 1], pads = [0, 0, 0, 0], dilations = [1, 1], group = 1, "
    'auto_pad = "NOTSET"> (x, w)',
    'y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (x)',
    "f = Flatten <axis = 2> (x) y = Softmax <axis = 0> (f)",
    "f = Flatten <axis = 0> (x) y = Concat <axis = 0> (f, f)",
    "y = Softmax <axis = 1> (x)",
    "y = Transpose <perm = [1, 0, 2, 3]> (x)",
    "d = Cast <to = 7> (x) y = Cast <to = 1> (d)",
    "s = Reshape(x, flat) y = Gemm <alpha = 0.5, beta = 2.0, transA = 1, transB = 0> (s, s, half)",
    "s = Reshape(x, flat) y = Gemm <alpha = 1.0, beta = 1.0, transA = 0, transB = 1> (s, s, half)",
]


@pytest.mark.parametrize("nodes", ATTRIBUTES)
def test_leaving_out_attributes_changes_nothing(nodes: str) -> None:
    constants = {"w": SMALL["w"], "flat": np.array([-1, 8]), "half": np.array(0.5, np.float32)}
    used = {name: array for name, array in constants.items() if f" {name}" in nodes}
    rank = ", ".join("ABCD"[: 2 if "Flatten" in nodes or "Gemm" in nodes else 4])
    network = quantized(
        parse(f"g (float[N, 6, 8, 8] x) => (float[{rank}] y) {{ {nodes} }}", **used),
        samples(2, 6, 8, 8),
        keep_float=lambda _site: True,
    )
    check(network, samples(2, 6, 8, 8))


def test_what_values_are_called_in_the_file() -> None:
    network = quantized(parse(RESIDUAL, **CONSTANTS), samples(2, 3, 8, 8), forms=SEVEN)
    file = exported(network)
    assert (file.renamed["x"], file.renamed["y"]) == ("x", "y")
    names = [network.lowered.codes["t"], "r/real"]
    plain = Runner(network.lowered.model, names).run(samples(2, 3, 8, 8)[0])
    short = [file.renamed[name] for name in names]
    result = Runner(file.proto, short).run(samples(2, 3, 8, 8)[0])
    assert plain[names[0]].dtype == result[short[0]].dtype == np.uint8
    assert np.abs(plain[names[1]] - result[short[1]]).max() < 0.2


def test_biases_of_new_layers_are_packed() -> None:
    model = parse(RESIDUAL, **CONSTANTS)
    network = quantized(model, samples(2, 3, 8, 8), forms=Integer(4))
    tuned = QuantizedParameters(network.tuned.weights, {**network.tuned.biases, "e": noise(4, seed=8)})
    changed = Quantized(
        model, network.plan, tuned, Lower().apply(PlanWithParameters(model, network.plan, tuned)).output
    )
    check(changed, samples(2, 3, 8, 8), 0.03)
