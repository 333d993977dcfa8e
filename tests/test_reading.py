import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptqc.errors import ModelError
from ptqc.execute.onnxruntime import run
from ptqc.reading import read_model

HUGE = 1 << 40
WEIGHT = np.arange(8, dtype=np.float32).reshape(4, 2)


def linear(opset: int = 17) -> onnx.ModelProto:
    """y = relu(x @ w)"""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def write(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as info:
        read_model(path)
    assert str(info.value).startswith(str(path))
    return str(info.value)


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
    """A copy with metadata and doc strings wherever ONNX has room for them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.doc_string = text
    graph = copy.graph
    inner = [graph for node in graph.node for attribute in node.attribute for graph in [attribute.g] if graph.node]
    for part in (graph, *inner):
        for message in (part, *part.node, *part.initializer, *part.input, *part.output, *part.value_info):
            message.doc_string = text
            message.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=text)
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
    given = annotated(plain, "File modeling_bert.py, line 541, in forward " * 9)
    path = write(tmp_path / "annotated.onnx", given)
    found, wanted = read_model(path), read_model(write(tmp_path / "plain.onnx", plain))
    assert ir.to_proto(found.model).SerializeToString() == ir.to_proto(wanted.model).SerializeToString()
    assert found.model.metadata_props == {"author": "someone"}
    assert found.size == path.stat().st_size == len(given.SerializeToString())
    dropped = f"{len(given.SerializeToString()) - len(plain.SerializeToString()):,} bytes of metadata"
    assert [note.message[: len(dropped)] for note in found.notes if "metadata" in note.message] == [dropped]


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


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x10\0\0\0\0\0\0\0{" + b" " * 40, "safetensors"),
        (b"\x1f\x8b\x08rest", "gzip"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"layers:\n  - conv\n", "text file"),
        (bytes(range(255, 0, -1)), "cut short"),
        (linear().SerializeToString()[:-20], "cut short"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
    ],
)
def test_refuses_what_is_no_model(tmp_path: Path, content: bytes, hint: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert hint in refusal(path)


def test_refuses_paths_without_a_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx")
    assert "folder" in refusal(tmp_path)


def no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def operator(op_type: str, domain: str = "") -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].op_type = op_type
        model.graph.node[1].domain = domain

    return change


def weight(array: np.ndarray) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))

    return change


def dims(*sizes: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].dims[:] = sizes

    return change


def data_type(number: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].data_type = number

    return change


def second_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT + 1, "w"))


def second_definition(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["x"], ["h"]))


def second_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.output[0])


def undefined_input(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "ghost"


def undefined_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "ghost"


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))


def double_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def bad_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute.append(helper.make_attribute("unheard_of", 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_nodes, "no nodes"),
        (no_outputs, "no outputs"),
        (no_opset, "no operator set version"),
        (opset(6), "opset 6; 7 to 26 are accepted: use onnx.version_converter"),
        (opset(27), "opset 27; 7 to 26 are accepted"),
        (operator("Frobnicate"), "opset 17 does not define: Frobnicate"),
        (operator("Relu", "my.domain"), "custom operators: my.domain:Relu"),
        (operator("MatMulNBits", "com.microsoft"), "quantized already"),
        (operator("QAttention", "com.microsoft"), "quantized already"),
        (operator("Conv", "com.microsoft.nchwc"), "ORT_ENABLE_EXTENDED at most"),
        (operator("DequantizeLinear"), "quantized already"),
        (weight(np.array([[1, np.nan], [np.inf, 2]] * 2, np.float32)), "'w' holds 4 of 8"),
        (weight(WEIGHT.astype(np.float64)), "float64"),
        (dims(-4, -2), "negative"),
        (dims(1 << 31, 1 << 31), "needs"),
        (dims(4, 3), "needs 48 bytes of data, it has 32"),
        (data_type(99), "unknown type 99"),
        (data_type(0), "no type"),
        (second_initializer, "defined twice"),
        (second_definition, "defined twice"),
        (second_output, "listed twice"),
        (undefined_input, "reads 'ghost'"),
        (undefined_output, "'ghost' is computed by no node"),
        (cycle, "depends on its own result"),
        (sparse, "sparse"),
        (double_input, "'x' is float64; float32 is expected: export it in float32, or give --cast-double"),
        (bad_attribute, "checker"),
    ],
)
def test_refuses_bad_models(tmp_path: Path, change: Callable[[onnx.ModelProto], None], message: str) -> None:
    model = linear()
    change(model)
    assert message in refusal(write(tmp_path / "m.onnx", model))


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


def test_nonfinite_weight_in_a_constant_node_is_refused(tmp_path: Path) -> None:
    model = linear()
    bad = numpy_helper.from_array(np.full((4, 2), np.nan, np.float32))
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=bad))
    assert "'w' holds 8 of 8" in refusal(write(tmp_path / "m.onnx", model))


def external(folder: Path, **entries: object) -> Path:
    model = linear()
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(b"\0" * 16 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": 16, "length": 32, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return write(folder / "m.onnx", model)


def test_external_data_counts_in_size_and_digest(tmp_path: Path) -> None:
    path = external(tmp_path)
    source = read_model(path)
    assert source.size == path.stat().st_size + 48
    assert run(source.model, {"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[12, 16]]
    (tmp_path / "w.bin").write_bytes(b"\1" * 48)
    assert read_model(path).digest != source.digest


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "gone.bin"}, "missing"),
        ({"location": "/etc/passwd"}, "inside the model's folder"),
        ({"location": "C:\\w.bin"}, "inside the model's folder"),
        ({"location": "../w.bin"}, "inside the model's folder"),
        ({"location": ""}, "without a location"),
        ({"location": "link.bin"}, "leaves the model's folder"),
        ({"location": "inner"}, "not a regular file"),
        ({"offset": -4}, "offset '-4'"),
        ({"offset": "x"}, "offset 'x'"),
        ({"offset": 17}, "up to byte 49"),
        ({"length": 1 << 60}, "length"),
    ],
)
def test_refuses_bad_external_data(tmp_path: Path, entries: dict[str, object], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "inner").mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\0" * 48)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    assert message in refusal(external(folder, **entries))


def with_functions(calls: list[list[int]]) -> onnx.ModelProto:
    """A model that calls function 0; function i calls those in calls[i], one after the other."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for number, callees in enumerate(calls):
        names = ["x", *(f"v{i}" for i in range(len(callees))), "y"]
        operators = [*(f"f{callee}" for callee in callees), "Relu"]
        nodes = [
            helper.make_node(op_type, [a], [b], domain="f" if op_type != "Relu" else "")
            for op_type, a, b in zip(operators, names, names[1:], strict=False)
        ]
        functions.append(helper.make_function("f", f"f{number}", ["x"], ["y"], nodes, imports))
    model = linear()
    model.graph.node[1].CopyFrom(helper.make_node("f0", ["h"], ["y"], domain="f"))
    model.opset_import.append(imports[1])
    model.functions.extend(functions)
    return model


def test_accepts_functions(tmp_path: Path) -> None:
    assert len(read_model(write(tmp_path / "m.onnx", with_functions([[1, 1], []]))).model.functions) == 2


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([[i + 1, i + 1] for i in range(24)] + [[]], "expand to"),
        ([[i + 1] for i in range(101)] + [[]], "nests 102 calls"),
        ([[1], [0]], "calls itself"),
    ],
)
def test_refuses_functions_that_explode(tmp_path: Path, calls: list[list[int]], message: str) -> None:
    assert message in refusal(write(tmp_path / "m.onnx", with_functions(calls)))


def test_refuses_two_functions_of_one_name(tmp_path: Path) -> None:
    model = with_functions([[]])
    model.functions.append(model.functions[0])
    assert "defined 2 times" in refusal(write(tmp_path / "m.onnx", model))


def test_refuses_a_function_of_another_opset(tmp_path: Path) -> None:
    model = with_functions([[]])
    model.functions[0].opset_import[0].version = 18
    assert "uses opset 18, the model 17" in refusal(write(tmp_path / "m.onnx", model))


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


def test_undefined_value_in_a_subgraph_is_refused(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    branches (float[N] x, bool c) => (float[N] y) {
        y = If(c) <then_branch = then () => (float[N] a) { a = Neg(ghost) },
                   else_branch = otherwise () => (float[N] b) { b = Abs(x) }>
    }"""
    assert "reads 'ghost'" in refusal(write(tmp_path / "m.onnx", onnx.parser.parse_model(text)))


def test_source_model_is_the_ir(tmp_path: Path) -> None:
    assert isinstance(read_model(write(tmp_path / "m.onnx", linear())).model, ir.Model)


@pytest.mark.parametrize(
    "body",
    ["y = ConstantOfShape(n)", "y = Expand(one, n)", "y = Tile(one, n)", "i = Range(z, m, o)  y = Cast <to = 1> (i)"],
)
def test_refuses_values_that_no_memory_holds(tmp_path: Path, body: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    bomb (float[N] x) => (float[A] h)
    <int64[1] n = {{{HUGE}}}, int64 m = {{{HUGE}}}, int64 z = {{0}}, int64 o = {{1}}, float[1] one = {{1}}>
    {{ {body}  h = Add(y, x) }}"""
    path = write(tmp_path / "m.onnx", onnx.parser.parse_model(text))
    assert f"{HUGE:,} elements" in refusal(path)
