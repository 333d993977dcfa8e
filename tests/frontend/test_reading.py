"""What is read as it stands, and what is put in order."""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from linear_model import linear, refusal, write
from onnx import TensorProto, helper, numpy_helper

from ptqc.execution.onnxruntime import run
from ptqc.frontend import read_model


def test_reads_a_model_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    before = path.read_bytes()
    source = read_model(str(path))
    assert path.read_bytes() == before
    assert source.path == path
    assert source.size == len(before)
    assert source.digest == hashlib.sha256(before).hexdigest()
    assert source.notes == ()
    assert [node.op_type for node in source.model.graph] == ["MatMul", "Relu"]


@pytest.mark.parametrize("opset", [7, 26])
def test_accepts_the_limits_of_the_opset_range(tmp_path: Path, opset: int) -> None:
    assert read_model(write(tmp_path / "m.onnx", linear(opset))).model.opset_imports[""] == opset


def test_constants_that_an_old_format_lists_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    proto = linear(9)
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]))
    source = read_model(write(tmp_path / "m.onnx", proto))
    assert [value.name for value in source.model.graph.inputs] == ["x"]
    assert [note.message for note in source.notes] == ["IR version 3 lists constants as inputs: left out of the inputs"]
    assert run(source.model, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[12, 16]]


def test_lowers_an_ir_version_that_the_runtime_would_refuse(tmp_path: Path) -> None:
    proto = linear()
    proto.ir_version = 14
    source = read_model(write(tmp_path / "m.onnx", proto))
    assert source.model.ir_version == 13
    assert "IR version 14" in source.notes[0].message


def annotated(model: onnx.ModelProto, text: str) -> onnx.ModelProto:
    """A copy with metadata and doc strings wherever ONNX has room for them inside of it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    inner = [graph for node in graph.node for attribute in node.attribute for graph in [attribute.g] if graph.node]
    for part in (graph, *inner):
        described = (part, *part.input, *part.output)
        for message in (*described, *part.node, *part.initializer, *part.value_info):
            message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=text)
            if part is not graph or message not in described:
                message.doc_string = text
    for function in copy.functions:
        for message in (function, *function.node, *function.value_info):
            message.doc_string = text
            message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=text)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        attribute.doc_string = text
    return copy


def test_leaves_out_what_the_exporter_wrote_beside_the_network(tmp_path: Path) -> None:
    plain = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18, "f": 1], metadata_props: ["author": "someone"]>
        g (float[N,4] x, bool c) => (float[N,4] y) {
            k = Constant <value = float[4] {1, 2, 3, 4}> ()
            a = f.scaled(x, k)
            y = If(c) <then_branch = t () => (float[N,4] b) { b = Neg(a) },
                       else_branch = e () => (float[N,4] o) { o = Abs(a) }>
        }
        <domain: "f", opset_import: ["": 18]> scaled (p, q) => (r) { r = Mul(p, q) }"""
    )
    value = annotated(plain, "File modeling_bert.py, line 541, in forward " * 9)
    path = write(tmp_path / "annotated.onnx", value)
    result, wanted = read_model(path), read_model(write(tmp_path / "plain.onnx", plain))
    assert ir.to_proto(result.model).SerializeToString() == ir.to_proto(wanted.model).SerializeToString()
    assert result.model.metadata_props == {"author": "someone"}
    assert result.size == path.stat().st_size == len(value.SerializeToString())
    dropped = f"{len(value.SerializeToString()) - len(plain.SerializeToString()):,} bytes of metadata"
    assert [note.message[: len(dropped)] for note in result.notes if "metadata" in note.message] == [dropped]


def test_sorts_an_unsorted_graph(tmp_path: Path) -> None:
    proto = linear()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    source = read_model(write(tmp_path / "m.onnx", proto))
    assert [node.op_type for node in source.model.graph] == ["MatMul", "Relu"]
    assert "sorted" in source.notes[0].message
    assert run(source.model, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[12, 16]]


def test_a_long_chain_needs_no_recursion(tmp_path: Path) -> None:
    proto = linear()
    del proto.graph.node[:]
    names = ["x", *(f"v{i}" for i in range(5000)), "y"]
    proto.graph.node.extend(helper.make_node("Relu", [a], [b]) for a, b in pairwise(names))
    assert len(read_model(write(tmp_path / "m.onnx", proto)).model.graph) == 5001


def test_integers_that_are_computed_are_left_as_they_are(tmp_path: Path) -> None:
    dynamic = """g (float[2,4] a, float[4,3] b) => (int32[2,3] y) {
        p, s, m = DynamicQuantizeLinear(a)
        q, t, n = DynamicQuantizeLinear(b)
        y = MatMulInteger(p, q, m, n)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {dynamic}')
    notes = read_model(write(tmp_path / "m.onnx", model)).notes
    assert [(note.subject, note.level) for note in notes] == [("p", "skipped"), ("q", "skipped"), ("y", "skipped")]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.uint8), "w"))
    model.graph.node[2].input[1] = "w"
    assert "quantized already (MatMulInteger" in refusal(write(tmp_path / "m.onnx", model))


def test_infinity_in_a_mask_is_fine(tmp_path: Path) -> None:
    model = linear()
    model.graph.initializer.append(numpy_helper.from_array(np.array([-np.inf, 0], np.float32), "mask"))
    model.graph.node[1].CopyFrom(helper.make_node("Add", ["h", "mask"], ["y"]))
    read_model(write(tmp_path / "m.onnx", model))


def test_subgraphs_stay_float_and_may_read_outer_values(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    branches (float[N] x, bool c) => (float[N] y) {
        h = Relu(x)
        y = If(c) <then_branch = then () => (float[N] a) { a = Neg(h) },
                   else_branch = otherwise () => (float[N] b) { b = Abs(h) }>
    }"""
    source = read_model(write(tmp_path / "m.onnx", onnx.parser.parse_model(text)))
    assert [(note.subject, note.level) for note in source.notes] == [("y", "skipped")]


def test_source_model_is_the_ir(tmp_path: Path) -> None:
    assert isinstance(read_model(write(tmp_path / "m.onnx", linear())).model, ir.Model)
