"""Products with packed weights in standard operators, which ONNX Runtime fuses when it loads the file."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from graphs import noise, parse
from lowering import Quantized, quantized
from onnx import TensorProto

from ptqc.codegen.onnxruntime import size, verify
from ptqc.codegen.onnxruntime.export import Exported, _Packer, export
from ptqc.codegen.onnxruntime.matmul_nbits import LEVEL_OF_FUSED, OPERATOR, DequantizedProduct
from ptqc.codegen.onnxruntime.size import loaded_bytes
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.formats import Codebook, Format, Integer

PRODUCTS = {
    "rows of texts": ("float[N, T, 64] x", "a = MatMul(x, w) y = MatMul(a, v)", (2, 5, 64)),
    "with a bias": ("float[N, 64] x", "a = MatMul(x, w) y = Gemm(a, v, b)", (5, 64)),
    "turned": ("float[N, 64] x", "a = MatMul(x, w) r = Relu(a) y = Gemm <transB = 1> (r, t, b)", (5, 64)),
    "of equal weights": ("float[N, 64] x", "a = MatMul(x, s) r = Relu(a) y = MatMul(r, e)", (5, 64)),
    "of one channel": ("float[N, 64] x", "a = MatMul(x, w) y = Gemm(a, o, c)", (5, 64)),
}
# Of the largest output: each product rounds what it reads to 8 bits.
ROUNDED = 0.02


def made_of(case: str, forms: Mapping[str, Format] | Format) -> tuple[Quantized, np.ndarray]:
    value, body, shape = PRODUCTS[case]
    v, s = noise(96, 48, seed=1), noise(64, 64, seed=2)
    constants = {"w": noise(64, 96, scale=0.2), "v": v, "t": v.T.copy(), "s": s, "e": s.copy(), "b": noise(48)}
    constants |= {"o": noise(96, 1, seed=4), "c": noise(1)}
    x = noise(*shape, seed=3)
    model = parse(f"g ({value}) => (float y) {{ {body} }}", **constants)
    return quantized(model, [{"x": x}], forms=forms, keep_float=lambda _site: True), x


def check(network: Quantized, file: Exported) -> verify.Verified:
    feeds = {str(i.name): noise(5, 64, seed=7) for i in network.model.graph.inputs}
    return verify.verify(file, network.lowered, Intent(network.model, network.plan, network.tuned), [feeds], None)


def written(network: Quantized) -> Exported:
    return export(network.lowered, network.model, in_blocks=DequantizedProduct)


@pytest.mark.parametrize("form", [Integer(4), Integer(8)], ids=str)
@pytest.mark.parametrize("case", PRODUCTS)
def test_weights_stay_packed_in_standard_operators(case: str, form: Format) -> None:
    made, x = made_of(case, form)
    file = written(made)
    proto = onnx.load_from_string(file.data)
    onnx.checker.check_model(proto)
    assert {node.domain for node in proto.graph.node} == {""}
    assert not proto.functions
    assert [node.op_type for node in verify.optimized(proto).node].count(OPERATOR) == 2
    wanted, result = made.run({"x": x}, optimize=False)["y"], Runner(proto).run({"x": x})["y"]
    assert np.abs(result - wanted).max() < ROUNDED * np.abs(wanted).max()
    numbers = sum(weight.size for weight in made.plan.weights)
    stored = {TensorProto.INT4: 4, TensorProto.UINT8: 8}
    codes = [t for t in proto.graph.initializer if t.data_type in stored and t.dims[0] >= 64]
    assert [len(t.raw_data) for t in codes] == [int(np.prod(t.dims)) * form.bits // 8 for t in codes]
    beside = 12 * numbers // 32  # what kernels keep of blocks
    assert loaded_bytes(proto) < numbers * form.bits // 8 + beside + 2000 < numbers * 4


@pytest.mark.parametrize("case", ["with a bias", "turned", "of equal weights"])
def test_the_file_is_as_tuned(case: str) -> None:
    made, _ = made_of(case, Integer(4))
    assert check(made, written(made)).weights_as_tuned == len(made.plan.weights)


def test_a_session_can_do_without_rounding() -> None:
    made, x = made_of("with a bias", Integer(8))
    wanted, options = made.run({"x": x}, optimize=False)["y"], session_options()
    options.add_session_config_entry(LEVEL_OF_FUSED, "0")
    rounded, exact = (Runner(written(made).proto, options=each).run({"x": x})["y"] for each in (None, options))
    errors = [np.abs(result - wanted).max() / np.abs(wanted).max() for result in (exact, rounded)]
    assert errors[0] < 1e-5 < 1e-3 < errors[1]


@pytest.mark.parametrize("form", [Integer(2), Integer(7), Codebook(4)], ids=str)
def test_other_formats_are_unpacked(form: Format) -> None:
    made, _ = made_of("rows of texts", form)
    assert not written(made).blocks


def test_a_weight_of_two_products_is_unpacked() -> None:
    graph = "g (float[N, 64] x) => (float y) { a = MatMul(x, s) y = MatMul(a, s) }"
    network = quantized(
        parse(graph, s=noise(64, 64)), [{"x": noise(2, 64)}], forms=Integer(4), keep_float=lambda _: True
    )
    assert not written(network).blocks
    assert check(network, written(network)).weights_as_tuned == 1


def test_a_wrong_bit_is_found() -> None:
    made, _ = made_of("with a bias", Integer(4))
    file = written(made)
    codes = next(t for t in file.proto.graph.initializer if t.data_type == TensorProto.INT4)
    codes.raw_data = codes.raw_data[:-1] + bytes([codes.raw_data[-1] ^ 16])
    with pytest.raises(VerificationError, match="is not what was tuned"):
        check(made, file)


def test_a_product_that_is_not_fused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where two products read one initializer of codes."""
    made, _ = made_of("of equal weights", Integer(4))
    monkeypatch.setattr("ptqc.codegen.onnxruntime.export._Packer.unshared", _Packer.share)
    with pytest.raises(VerificationError, match=r"does not fuse 2 of 2 products .*, first 's': give operators"):
        check(made, written(made))


@pytest.mark.parametrize("case", PRODUCTS)
def test_the_bytes_of_a_format_are_said(case: str) -> None:
    differences = []
    for form in (Integer(4), Integer(8)):
        made, _ = made_of(case, form)
        uses = [size.Use(in_blocks=DequantizedProduct)]
        said = sum(size.stored(made.tuned.weights[w.name], uses, 1).own for w in made.plan.weights)
        differences.append(export(made.lowered, made.model, 1, in_blocks=DequantizedProduct).size - said)
    assert abs(differences[1] - differences[0]) <= size.BOUND


BESIDE = """g (float[N, 64] x) => (float y) {
    a = Mul(x, h) m = MatMul(a, w) r = Relu(m) d = Gemm(r, v, b) y = Mul(d, h)
}"""


@pytest.mark.parametrize("form", [Integer(4), Integer(8)], ids=str)
@pytest.mark.parametrize(("in_float", "products"), [("a", 1), ("r", 2)])
def test_products_beside_codes_are_fused(in_float: str, products: int, form: Format) -> None:
    constants = {
        "w": noise(64, 96, scale=0.2),
        "v": noise(96, 48, seed=1),
        "b": noise(48),
        "h": np.array(0.5, np.float32),
    }
    model = parse(BESIDE, **constants)
    network = quantized(model, [{"x": noise(5, 64)}], forms=form, keep_float=lambda site: site == in_float)
    assert check(network, written(network)).operators[OPERATOR] == products
