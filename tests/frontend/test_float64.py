"""Where float64 may stand."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from linear_model import refusal, write
from onnx import numpy_helper

from ptqc.frontend import read_model


def double(graph: str) -> onnx.ModelProto:
    """A model of float32 inputs and float64 outputs, with a weight in float32 and a constant in float64."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => {graph}')
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4)), "scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([4, 1]), "four"))
    return model


def test_float64_behind_the_last_layers_is_taken(tmp_path: Path) -> None:
    tail = """(double[N,4] pitch, float[N,4] again) {
        h = MatMul(x, w)
        d = Cast<to=11>(h)
        s = Softmax(d)
        pitch = Mul(s, scale)
        f = Cast<to=1>(d)
        again = MatMul(f, w)
    }"""
    source = read_model(write(tmp_path / "m.onnx", double(tail)))
    assert [value.dtype for value in source.model.graph.outputs] == [ir.DataType.DOUBLE, ir.DataType.FLOAT]


@pytest.mark.parametrize(
    "graph",
    [
        "(double[N,4] y) { d = Cast<to=11>(x) e = Cast<to=11>(w) h = MatMul(d, e) y = Exp(h) }",
        "(double[N,4] y) { d = Cast<to=11>(x) e = Constant<value = double[4,1] {1, 1, 1, 1}>() y = MatMul(d, e) }",
        "(double[N,4] y) { r = Tile(scale, four) z = Exp(r) d = Cast<to=11>(x) y = MatMul(d, z) }",
    ],
)
def test_layers_that_compute_in_float64_are_refused(tmp_path: Path, graph: str) -> None:
    message = refusal(write(tmp_path / "m.onnx", double(graph)))
    assert "computes in float64; float32 is expected: export it in float32, or give --cast-double" in message
    assert read_model(tmp_path / "m.onnx", cast_double=True).cast_double
