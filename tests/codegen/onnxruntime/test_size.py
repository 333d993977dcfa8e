"""What a candidate is said to add to the file is what it adds to files that are really written."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import Measured, measure_residual, measured_model, proto, residual, samples
from graphs import noise, parse
from lowering import quantized
from mostly_slow import mostly_slow
from onnx import numpy_helper

from ptqc.codegen.onnxruntime import constants, size
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.onnxruntime.matmul_nbits import BlockProduct
from ptqc.formats import Format, Integer, VectorCodebook
from ptqc.ir import layers
from ptqc.ir.external import field_bytes, tensor
from ptqc.ir.integer_arithmetic import accumulator_scale, bias_codes, bits_for
from ptqc.ir.nodes import constant
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.quantize.phases import PlanWithParameters

NAME_LENGTH = 2


@pytest.fixture(scope="module")
def integer(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """With biases that differ, since equal ones are stored once."""
    model = residual()
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "b3")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * np.float32(1.3), "b3"))
    options = {"bits": (2, 3, 4, 5, 6, 7, 8), "activations": "integer"}
    return measured_model(model, samples(3, 8, 8), tmp_path_factory.mktemp("integer"), **options)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure_residual(tmp_path_factory.mktemp("float"), bits=(2, 3, 4, 5, 6, 7, 8), activations="float")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Tables of 2, 3, 16 and 200 distinct values."""
    rng = np.random.default_rng(0)
    tables = {f"t{n}": rng.choice(rng.standard_normal(n), (60, 32)).astype(np.float32) for n in (2, 3, 16, 200)}
    lines = " ".join(f"g{name} = Gather({name}, x)" for name in tables)
    graph = f"g (int64[N,4] x) => (float[N,4,32] y) {{ {lines} y = Sum({', '.join('g' + name for name in tables)}) }}"
    data = np.arange(128).reshape(32, 4) % 60
    return measured_model(proto(graph, **tables), data, tmp_path_factory.mktemp("table"))


def plan_of(measured: Measured, forms: Mapping[str, Format]) -> Plan:
    return replace(measured.context.roles, activations=measured.context.activations, formats=dict(forms))


def bias_of(measured: Measured, name: str) -> np.ndarray | None:
    layer = next(layer for layer in measured.context.layers if layer.name == name)
    return constant(measured.model.graph.initializers[layer.bias]) if layer.bias else None


def written(measured: Measured, forms: Mapping[str, Format]) -> int:
    """Bytes of the file with these formats."""
    weights = {name: measured.context.solutions[name, form] for name, form in forms.items()}
    biases = {layer.name: bias_of(measured, layer.name) for layer in measured.context.layers}
    lowered = (
        Lower()
        .apply(PlanWithParameters(measured.model, plan_of(measured, forms), QuantizedParameters(weights, biases)))
        .output
    )
    return len(export(lowered, measured.model, NAME_LENGTH).data)


def said(measured: Measured, forms: Mapping[str, Format]) -> int:
    """Bytes of all weights, and of what they share once each."""
    plan, total = plan_of(measured, forms), 0
    once: dict[str, int] = {}
    for weight in measured.context.weights:
        solution = measured.context.solutions[weight.name, forms[weight.name]]
        uses = []
        for layer in weight.layers:
            is_integer = layer.name in plan.integer
            codes = None
            if is_integer:
                x, y, bias = plan.params[layer.input], plan.params.get(layer.output), bias_of(measured, layer.name)
                assert bias is not None
                step = accumulator_scale(x, solution.scale)
                codes = constants.Bias(bias_codes(bias, step, bits_for(solution.form, bias, y)), step)
            uses.append(size.Use(is_integer, codes))
        needed = size.stored(solution, uses, NAME_LENGTH)
        total += needed.own
        once |= needed.parts(18)
    return total + sum(once.values())


def assert_same_growth(measured: Measured, one: Mapping[str, Format], other: Mapping[str, Format]) -> None:
    grown, expected = written(measured, other) - written(measured, one), said(measured, other) - said(measured, one)
    assert grown != 0
    assert abs(grown - expected) <= size.BOUND


def with_weight(measured: Measured, name: str, form: str) -> dict[str, Format]:
    """All weights at 4 bits but one."""
    forms = {weight.name: Format.parse("int4") for weight in measured.context.weights}
    return {**forms, name: Format.parse(form)}


@pytest.mark.parametrize("form", ["int2", "int3", "int5", "int6", "int7", "int8"])
@pytest.mark.parametrize("name", ["w1", "w3", "w4"])
def test_formats_of_integer_layers(integer: Measured, name: str, form: str) -> None:
    assert_same_growth(integer, with_weight(integer, name, "int4"), with_weight(integer, name, form))


@pytest.mark.parametrize("form", ["int2", "int3", "int5", "int7", "int8", "float16"])
@pytest.mark.parametrize("name", ["w1", "w3", "w4"])
def test_formats_of_float_layers(real: Measured, name: str, form: str) -> None:
    assert_same_growth(real, with_weight(real, name, "int4"), with_weight(real, name, form))


def test_all_weights_change_at_once(integer: Measured) -> None:
    names = [weight.name for weight in integer.context.weights]
    for one, other in ((2, 7), (3, 6), (5, 8)):
        forms = [{name: Format.parse(f"int{bits}") for name in names} for bits in (one, other)]
        assert_same_growth(integer, *forms)


@pytest.mark.parametrize(("name", "form"), [("t2", "palette1"), ("t3", "palette2"), ("t16", "palette4")])
def test_formats_of_tables(table: Measured, name: str, form: str) -> None:
    assert_same_growth(table, with_weight(table, name, "int4"), with_weight(table, name, form))
    assert_same_growth(table, with_weight(table, name, "float16"), with_weight(table, name, form))


def test_a_weight_that_two_layers_share_is_stored_once(tmp_path: Path) -> None:
    kernel = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32) / 17
    graph = (
        "g (float[N,32,8,8] x) => (float[N,32,8,8] y) "
        "{ a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, w, b) }"
    )
    data = np.random.default_rng(1).standard_normal((16, 32, 8, 8)).astype(np.float32)
    model = proto(graph, w=kernel, b=kernel[:, 0, 0, 0].copy())
    shared = measured_model(model, data, tmp_path, bits=(2, 4, 7))
    assert_same_growth(shared, with_weight(shared, "w", "int4"), with_weight(shared, "w", "int7"))
    assert written(shared, with_weight(shared, "w", "int7")) < kernel.size * 7 // 8 + 3000


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 16_383, 16_384, 3_000_000])
def test_an_entry_is_a_message_with_its_tag_and_length(length: int) -> None:
    holder = onnx.TensorProto(raw_data=b"x" * length)
    graph = onnx.GraphProto()
    graph.initializer.append(holder)
    assert graph.ByteSize() == field_bytes(holder.ByteSize())


@pytest.mark.parametrize("limit", mostly_slow([6_500, 7_777, 9_000, 11_111, 14_000, None], 6_500, None))
def test_the_solver_is_told_the_size_of_the_file(integer: Measured, limit: int | None) -> None:
    """Length prefixes may differ, and which units of scales and biases are equal, so that the file has them once."""
    fitted = integer.fit(limit)
    unit = field_bytes(tensor("ab", np.array(1, np.float32)).ByteSize())
    assert abs(len(fitted.exported.data) - fitted.predicted_size) <= size.BOUND + unit * len(integer.context.weights)
    assert limit is None or len(fitted.exported.data) <= limit


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("large", [1, 10**9])
def test_a_tied_table_is_counted_once(large: int, integer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGE", large)
    graph = "g (int64[N, T] i) => (float[N, T, 90] y) { e = Gather(t, i) a = Tanh(e) y = MatMul(a, h) }"
    table, written, said = noise(90, 16), [], []
    for form in (Integer(3), Integer(7), VectorCodebook(5)):
        feeds = [{"i": np.array([[1, 2]])}]
        model = parse(graph, t=table, h=table.T.copy())
        network = quantized(model, feeds, forms=form, keep_float=lambda _site: not integer)
        assert bool(network.plan.integer) == integer
        uses = [size.Use(integer), size.Use(is_table=True, rank=2 if large == 1 else None)]
        needed = size.stored(network.tuned.weights["h"], uses, 1, tied=True)
        said.append(needed.own + sum(needed.parts(18).values()))
        written.append(export(network.lowered, network.model, 1).size)
    assert np.ptp(np.subtract(written, said)) <= size.BOUND


def test_a_tied_table_in_blocks_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LARGE", 1)
    graph = "g (int64[N, T] i) => (float[N, T, 90] y) { e = Gather(t, i) a = Tanh(e) y = MatMul(a, h) }"
    table, written, said = noise(90, 32), [], []
    for form in (Integer(4), Integer(8)):
        model = parse(graph, t=table, h=table.T.copy())
        network = quantized(model, [{"i": np.array([[1, 2]])}], forms=form, keep_float=lambda _site: True)
        uses = [size.Use(in_blocks=BlockProduct), size.Use(in_blocks=BlockProduct, is_table=True, rank=2)]
        needed = size.stored(network.tuned.weights["h"], uses, 1, tied=True)
        said.append(needed.own + sum(needed.parts(18).values()))
        written.append(export(network.lowered, network.model, 1, in_blocks=BlockProduct).size)
    assert np.ptp(np.subtract(written, said)) <= size.BOUND
    assert written[1] - written[0] == pytest.approx(table.size / 2, abs=size.BOUND)
