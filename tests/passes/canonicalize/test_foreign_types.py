import onnx.parser
import onnx_ir as ir
from graphs import noise
from rewriting import rewrite

from ptqc.ir.nodes import infer_shapes
from ptqc.passes.canonicalize.foreign_types import ForeignTypes
from ptqc.passes.runner import run_rewrites

GRAPH = """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
g (float[N, 4] x) => (float[N, A] y) {
    h = com.microsoft.QuickGelu(x)
    y = Relu(h)
}"""
UNKNOWN = (None, None)


def inner(model: ir.Model) -> tuple[ir.DataType | None, int | None]:
    """What is known of the value between the two operators: type and rank."""
    value = model.graph.node(0).outputs[0]
    return value.dtype, value.shape.rank() if value.shape is not None else None


def test_types_and_ranks_come_from_a_run_and_stay() -> None:
    model = ir.from_proto(onnx.parser.parse_model(GRAPH))
    infer_shapes(model)
    assert inner(model) == UNKNOWN
    assert rewrite(model, ForeignTypes(), x=noise(3, 4)) == []
    assert inner(model) == (ir.DataType.FLOAT, 2)
    infer_shapes(model)
    assert inner(model) == (ir.DataType.FLOAT, 2)


def test_without_samples_nothing_is_stated() -> None:
    model = ir.from_proto(onnx.parser.parse_model(GRAPH))
    run_rewrites(model, (ForeignTypes(),), [])
    assert inner(model) == UNKNOWN
