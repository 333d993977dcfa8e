"""Products with packed weights: what the operator gives, what a session holds, and that a wrong bit is found."""

import numpy as np
import onnx
import pytest
from graphs import noise, parse
from lowering import Quantized, quantized
from onnx import numpy_helper

from ptqc.codegen.onnxruntime import size, verify
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.onnxruntime.matmul_nbits import OPERATOR, PICKER, BlockProduct, block_size, without_rounding
from ptqc.codegen.onnxruntime.size import loaded_bytes
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds, Runner, session_options
from ptqc.formats import Codebook, Format, Integer
from ptqc.ir import layers

PRODUCTS = {
    "rows of texts": ("float[N, T, 64] x", "a = MatMul(x, w) y = MatMul(a, v)", (2, 5, 64)),
    "with a bias": ("float[N, 64] x", "a = MatMul(x, w) y = Gemm(a, v, b)", (5, 64)),
    "turned": ("float[N, 64] x", "a = MatMul(x, w) y = Gemm <transB = 1> (a, t, b)", (5, 64)),
    "one weight for two": ("float[N, 64] x", "a = MatMul(x, s) y = MatMul(a, s)", (5, 64)),
}
# Of the largest output: each product rounds what it reads to 8 bits.
ROUNDED = 0.02


def made_of(case: str, form: Format) -> tuple[Quantized, np.ndarray]:
    value, body, shape = PRODUCTS[case]
    v = noise(96, 48, seed=1)
    constants = {"w": noise(64, 96, scale=0.2), "v": v, "t": v.T.copy(), "s": noise(64, 64, seed=2), "b": noise(48)}
    x = noise(*shape, seed=3)
    model = parse(f"g ({value}) => (float y) {{ {body} }}", **constants)
    return quantized(model, [{"x": x}], forms=form, keep_float=lambda _site: True), x


def check(network: Quantized, file: Exported) -> int:
    return verify.check(file, network.lowered, Intent(network.model, network.plan, network.tuned))


@pytest.mark.parametrize("form", [Integer(4), Integer(8)], ids=str)
@pytest.mark.parametrize("case", PRODUCTS)
def test_weights_stay_packed(case: str, form: Format) -> None:
    made, x = made_of(case, form)
    file = export(made.lowered, made.model, in_blocks=BlockProduct)
    proto = onnx.load_from_string(file.data)
    onnx.checker.check_model(proto)
    assert [node.op_type for node in proto.graph.node].count(OPERATOR) == 2
    assert not proto.functions
    wanted, result = made.run({"x": x}, optimize=False)["y"], Runner(proto).run({"x": x})["y"]
    assert np.abs(result - wanted).max() < ROUNDED * np.abs(wanted).max()
    numbers = sum(weight.size for weight in made.plan.weights)
    assert check(made, file) == len(made.plan.weights)
    beside = 12 * numbers // 32  # what kernels keep of blocks
    assert loaded_bytes(proto) < numbers * form.bits // 8 + beside + 2000 < numbers * 4


@pytest.mark.parametrize("form", [Integer(7), Codebook(4)], ids=str)
def test_other_formats_are_unpacked(form: Format) -> None:
    made, _ = made_of("rows of texts", form)
    file = export(made.lowered, made.model, in_blocks=BlockProduct)
    assert not file.blocks
    assert check(made, file) == 2


def test_what_is_no_product_is_unpacked() -> None:
    body = "a = MatMul(x, w) s = ReduceSum <keepdims = 0> (w, zero) y = Add(a, s)"
    graph = f"g (float[N, 64] x) => (float[N, 96] y) {{ {body} }}"
    model = parse(graph, w=noise(64, 96), zero=np.array([0]))
    network = quantized(model, [{"x": noise(2, 64)}], forms=Integer(4), keep_float=lambda _site: True)
    assert not export(network.lowered, network.model, in_blocks=BlockProduct).blocks


def test_standard_operators_are_the_default() -> None:
    made, _ = made_of("rows of texts", Integer(4))
    assert {node.domain for node in export(made.lowered, made.model).proto.graph.node} == {"", "p"}


@pytest.mark.parametrize(("width", "expected"), [(384, 128), (64, 64), (96, 32), (48, 16), (40, None)])
def test_blocks_divide_a_channel(width: int, expected: int | None) -> None:
    assert block_size(Integer(4), width) == expected
    assert block_size(Integer(5), width) is None


def test_a_wrong_bit_is_found() -> None:
    made, _ = made_of("with a bias", Integer(4))
    file = export(made.lowered, made.model, in_blocks=BlockProduct)
    packed = next(t for t in file.proto.graph.initializer if len(t.dims) == 3)
    array = numpy_helper.to_array(packed).copy()
    array[-1, -1, -1] ^= 16
    packed.CopyFrom(numpy_helper.from_array(array, packed.name))
    with pytest.raises(VerificationError, match="is not what was tuned"):
        check(made, file)


@pytest.mark.parametrize("case", ["rows of texts", "one weight for two"])
def test_the_bytes_of_a_format_are_said(case: str) -> None:
    differences = []
    for form in (Integer(4), Integer(8)):
        made, _ = made_of(case, form)
        said = 0
        for weight in made.plan.weights:
            uses = [size.Use(in_blocks=BlockProduct) for _ in weight.layers]
            said += size.stored(made.tuned.weights[weight.name], uses, 1).own
        differences.append(export(made.lowered, made.model, 1, in_blocks=BlockProduct).size - said)
    assert abs(differences[1] - differences[0]) <= size.BOUND


def test_without_rounding_only_the_weights_are_coarse() -> None:
    made, x = made_of("with a bias", Integer(8))
    file = export(made.lowered, made.model, in_blocks=BlockProduct)
    products = {file.renamed[each.product] for each in file.blocks.values()}
    wanted = Runner(made.lowered.model, options=session_options(optimize=False)).run({"x": x})["y"]
    rounded, exact, other = (
        np.abs(Runner(proto).run({"x": x})["y"] - wanted).max() / np.abs(wanted).max()
        for proto in (file.proto, without_rounding(file.proto, products), without_rounding(file.proto, ()))
    )
    assert exact < 1e-5 < 1e-3 < rounded == other < ROUNDED


PICKS = """g (int64[N, T] i, int32[M] j) => (float[N, T, 64] y, float[M, 64] z) {
    y = Gather(embedding, i)
    z = Gather(embedding, j)
}"""
PLACES: Feeds = {"i": np.array([[0, 499, 7], [-1, 3, 3]]), "j": np.array([5, 499, -500, 0], np.int32)}


@pytest.mark.parametrize("form", [Integer(4), Integer(8), Integer(5)], ids=str)
def test_rows_are_picked_by_an_operator(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, of tables of the widths that it takes."""
    monkeypatch.setattr(layers, "LARGE", 500 * 64)
    network = quantized(parse(PICKS, embedding=noise(500, 64)), [PLACES], forms=form)
    file = export(network.lowered, network.model, in_blocks=BlockProduct)
    proto = onnx.load_from_string(file.data)
    onnx.checker.check_model(proto)
    assert [node.op_type for node in proto.graph.node].count(PICKER) == (0 if form == Integer(5) else 2)
    expected, result = network.run(PLACES, optimize=False), Runner(proto).run(PLACES)
    for name, rows in expected.items():
        np.testing.assert_array_equal(result[name], rows)
    assert check(network, file) == 1
    assert loaded_bytes(proto) < form.bits * 500 * 64 // 8 + 10_000
    stored = [tensor for tensor in proto.graph.initializer if len(tensor.raw_data) >= form.bits * 500 * 64 // 16]
    assert len(stored) == 1


def test_a_wrong_bit_of_a_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGE", 500 * 64)
    network = quantized(parse(PICKS, embedding=noise(500, 64)), [PLACES], forms=Integer(4))
    file = export(network.lowered, network.model, in_blocks=BlockProduct)
    plane = next(t for t in file.proto.graph.initializer if t.data_type == onnx.TensorProto.UINT8)
    array = numpy_helper.to_array(plane).copy()
    array[499, -1] ^= 1
    plane.CopyFrom(numpy_helper.from_array(array, plane.name))
    with pytest.raises(VerificationError, match=r"'embedding'.* is not what was tuned"):
        check(network, file)


@pytest.mark.parametrize("length", [1, 2])
def test_the_bytes_of_a_table_in_blocks_are_said(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the prefixes of lengths, between the formats that the operator takes."""
    monkeypatch.setattr(layers, "LARGE", 500 * 64)
    expected, written = list[int](), list[int]()
    for form in (Integer(4), Integer(8)):
        network = quantized(parse(PICKS, embedding=noise(500, 64)), [PLACES], forms=form)
        written.append(len(export(network.lowered, network.model, length, in_blocks=BlockProduct).data))
        uses = [size.Use(in_blocks=BlockProduct, is_table=True, rank=rank) for rank in (2, 1)]
        expected.append(size.stored(network.tuned.weights["embedding"], uses, length).own)
    assert abs((written[1] - written[0]) - (expected[1] - expected[0])) <= size.BOUND
