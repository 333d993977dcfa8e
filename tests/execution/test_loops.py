"""A run of a Loop ends, by itself or by the limit; sequences cross the cuts of a walk."""

import time

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ptqc.errors import ModelError
from ptqc.execution import onnxruntime
from ptqc.execution.onnxruntime import Runner, has_loop, tensors_of
from ptqc.execution.walk import Slicer, Walk


def loop(times: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[N] x) => (float[N] y) {{
        m = Constant<value = int64 {{{times}}}>()
        c = Constant<value = bool {{1}}>()
        y = Loop(m, c, x) <body = b (int64 i, bool d, float[N] s) => (bool e, float[N] t) {{
            e = Identity(d) t = Add(s, s) }}>
    }}""")


def test_a_loop_that_ends_is_run() -> None:
    assert Runner(loop(3)).run({"x": np.ones(2, np.float32)})["y"].tolist() == [8, 8]


def test_a_loop_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "LOOP_LIMIT", 0.2)
    started = time.monotonic()
    with pytest.raises(ModelError, match="a Loop of the model may have no end"):
        Runner(ir.from_proto(loop((1 << 63) - 1))).run({"x": np.ones(2, np.float32)})
    assert time.monotonic() - started < 30


def test_a_loop_is_found_wherever_it_is() -> None:
    inner = loop(3)
    branch = onnx.helper.make_graph(inner.graph.node, "then", [], [onnx.ValueInfoProto(name="y")])
    in_branch = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=onnx.GraphProto())
    in_function = onnx.helper.make_function("f", "F", ["x"], ["y"], inner.graph.node, inner.opset_import)
    plain = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.helper.make_node("Relu", ["x"], ["y"])]))
    assert not has_loop(plain)
    for model in (
        inner,
        onnx.ModelProto(graph=onnx.GraphProto(node=[*plain.graph.node, in_branch])),
        onnx.ModelProto(graph=plain.graph, functions=[in_function]),
    ):
        assert has_loop(model)
    assert has_loop(ir.from_proto(inner))


def sequences() -> ir.Model:
    return ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N] x) => (float[N] y) {
        s = SequenceConstruct(x, x)
        i = Constant<value = int64 {1}>()
        y = SequenceAt(s, i)
    }""")
    )


def test_a_walk_takes_sequences_along() -> None:
    walk = Walk(Slicer(sequences()), [{"x": np.arange(3, dtype=np.float32)}])
    for _ in range(len(walk)):
        walk.advance(walk.compute())
    assert np.asarray(walk.values["y"][0]).tolist() == [0, 1, 2]


def test_tensors_of_sequences_are_numbered() -> None:
    x = np.ones(2, np.float32)
    result = tensors_of({"a": x, "b": [x, x], "c": None, "d": np.array(["text"], object)})
    assert {name: array.dtype.kind for name, array in result.items()} == {"a": "f", "b[0]": "f", "b[1]": "f", "d": "U"}
