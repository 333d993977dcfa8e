import numpy as np
import onnx_ir as ir
import pytest
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.errors import ModelError
from ptqc.ir.nodes import constant
from ptqc.passes.canonicalize.float32_inside import Float32Inside


def test_interface_keeps_float16_and_the_inside_is_float32() -> None:
    graph = "g (float16[N, 4] x) => (float16[N, 3] y, float16[N, 3] h) { h = MatMul(x, w)  y = Relu(h) }"
    model = parse(graph, w=noise(4, 3).astype(np.float16))
    notes = rewrite(model, Float32Inside(), x=noise(2, 4).astype(np.float16))
    assert sorted(operators(model)) == ["Cast", "Cast", "Cast", "MatMul", "Relu"]
    assert [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)] == [ir.DataType.FLOAT16] * 3
    assert model.graph.initializers["w"].dtype == ir.DataType.FLOAT
    assert "FLOAT16" in notes[0].message


def test_casts_and_tensor_attributes_are_widened() -> None:
    graph = """g (float[N] x) => (float[N] y) {
        a = Cast <to = 10> (x)
        one = Constant <value = float16[1] {1}> ()
        b = Add(a, one)
        y = Cast <to = 1> (b)
    }"""
    model = parse(graph)
    rewrite(model, Float32Inside(), x=noise(5))
    assert model.graph[0].attributes["to"].as_int() == ir.DataType.FLOAT
    assert model.graph[1].attributes["value"].as_tensor().dtype == ir.DataType.FLOAT


def test_bfloat16_runs_from_then_on() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Cast <to = 16> (x)  b = Softsign(a)  y = Cast <to = 1> (b) }")
    notes = rewrite(model, Float32Inside(), x=noise(5))
    assert any(note.level == "warning" for note in notes)


def test_float32_models_stay() -> None:
    assert rewrite(parse("g (float[N] x) => (float[N] y) { y = Relu(x) }"), Float32Inside(), x=noise(2)) == []


DOUBLE = "g (double[N, 4] x) => (double[N, 3] y) { h = MatMul(x, w)  m = Add(h, b)  y = Relu(m) }"


def test_float64_is_cast_only_where_that_is_meant() -> None:
    arrays = {"w": noise(4, 3).astype(np.float64), "b": np.zeros(3)}
    feeds = {"x": noise(2, 4).astype(np.float64)}
    assert rewrite(parse(DOUBLE, **arrays), Float32Inside(), **feeds) == []
    model = parse(DOUBLE, **arrays)
    notes = rewrite(model, Float32Inside(double=True), **feeds)
    assert operators(model) == ["Cast", "MatMul", "Add", "Relu", "Cast"]
    assert [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)] == [ir.DataType.DOUBLE] * 2
    assert {value.dtype for value in model.graph.initializers.values()} == {ir.DataType.FLOAT}
    assert "DOUBLE model computes in float32 inside" in notes[0].message


def test_the_lowest_float64_stays_finite_and_an_infinity_stays_one() -> None:
    bounds = np.array([np.finfo(np.float64).min, -np.inf, 1.0])
    model = parse(DOUBLE, w=noise(4, 3).astype(np.float64), b=bounds)
    rewrite(model, Float32Inside(double=True), x=noise(2, 4).astype(np.float64))
    lowest = np.finfo(np.float32).min
    np.testing.assert_array_equal(constant(model.graph.initializers["b"]), np.array([lowest, -np.inf, 1], np.float32))


def test_a_model_that_needs_float64_is_refused() -> None:
    model = parse("g (double[N] x) => (double[N] y) { a = Add(x, c)  y = Sub(a, c) }", c=np.array(1e10))
    with pytest.raises(ModelError, match="needs float64: float32-inside changed output 'y'"):
        rewrite(model, Float32Inside(double=True), x=noise(5).astype(np.float64))


def test_bits_of_float64_are_refused() -> None:
    model = parse("g (double[N] x) => (int64[N] y) { y = BitCast<to=7>(x) }", 26)
    with pytest.raises(ModelError, match="cannot run in float32"):
        rewrite(model, Float32Inside(double=True), x=noise(5).astype(np.float64))


def test_a_convolution_that_onnxruntime_lacks_in_float64_runs_from_then_on() -> None:
    model = parse("g (double[N,2,5,5] x) => (double[N,3,4,4] y) { y = Conv(x, w) }", w=np.ones((3, 2, 2, 2)))
    notes = rewrite(model, Float32Inside(double=True), x=noise(2, 2, 5, 5).astype(np.float64))
    assert "cannot run the DOUBLE model itself" in notes[0].message


@pytest.mark.parametrize("half", [10, 16])
def test_half_precision_between_casts_alone(half: int) -> None:
    """As mixed precision is exported: constants, inputs and outputs are float32, and no inner type is stated."""
    graph = f"""g (float[N, 4] x) => (float[N, 3] y) {{
        a = Cast <to = {half}> (x)
        b = Cast <to = 1> (a)
        y = MatMul(b, w)
    }}"""
    model = parse(graph, w=noise(4, 3))
    for node in model.graph:
        node.outputs[0].type = None if not node.outputs[0].is_graph_output() else node.outputs[0].type
    notes = rewrite(model, Float32Inside(), x=noise(5, 4))
    assert [note.level for note in notes] == ["info"]
    assert model.graph[0].attributes["to"].as_int() == ir.DataType.FLOAT
