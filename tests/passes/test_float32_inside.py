import numpy as np
import onnx_ir as ir
from graphs import noise, parse
from rewriting import operators, rewrite

from ptqc.passes.float32_inside import Float32Inside


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
