"""What is refused before any library sees it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from linear_model import WEIGHT, linear, refusal, write
from onnx import TensorProto, helper, numpy_helper

HUGE = 1 << 40

Change = Callable[[onnx.ModelProto], None]


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


def test_refuses_axes_that_are_no_text(tmp_path: Path) -> None:
    model = linear()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "REPLACED"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"REPLACED", b"\xd2eplaced"))
    assert "names an axis by what is not UTF-8 text (b'\\xd2eplaced')" in refusal(path)


def test_refuses_values_that_are_no_text(tmp_path: Path) -> None:
    model = linear()
    model.graph.output[0].name = model.graph.node[1].output[0] = "REPLACED"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"REPLACED", b"\xd2eplaced"))
    assert "names a value by what is not UTF-8 text" in refusal(path)


@pytest.mark.parametrize("name", ["op_type", "domain"])
def test_refuses_operators_that_are_no_text(tmp_path: Path, name: str) -> None:
    model = linear()
    setattr(model.graph.node[0], name, "REPLACED")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"REPLACED", b"\xd2eplaced"))
    assert "not UTF-8 text (b'\\xd2eplaced')" in refusal(path)


def test_refuses_paths_without_a_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx")
    assert "folder" in refusal(tmp_path)


def no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def opset(version: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def operator(op_type: str, domain: str = "") -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].op_type = op_type
        model.graph.node[1].domain = domain

    return change


def weight(array: np.ndarray) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "w"))

    return change


def dims(*sizes: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].dims[:] = sizes

    return change


def output_dims(*sizes: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes))

    return change


def data_type(number: int) -> Change:
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


def bfloat16_output(model: onnx.ModelProto) -> None:
    """What PyTorch writes of a model in bfloat16."""
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16


def bad_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute.append(helper.make_attribute("unheard_of", 1))


def normalization(kind: int, inputs: Sequence[str] = ("h", "s"), outputs: Sequence[str] = ("y",)) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.add(name="s", data_type=kind, dims=[2])
        model.graph.node[1].CopyFrom(helper.make_node("SimplifiedLayerNormalization", inputs, outputs))

    return change


def classical(op_type: str, version: int, **attributes: Any) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].CopyFrom(helper.make_node(op_type, ["h"], ["y"], domain="ai.onnx.ml", **attributes))
        model.opset_import.add(domain="ai.onnx.ml", version=version)

    return change


def constant(*attributes: onnx.AttributeProto) -> Change:
    """In place of the weight."""

    def change(model: onnx.ModelProto) -> None:
        del model.graph.initializer[:]
        node = onnx.NodeProto(op_type="Constant", output=["w"], attribute=attributes)
        model.graph.node.insert(0, node)

    return change


def value(**fields: Any) -> onnx.AttributeProto:
    return onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, **fields)


def attribute(op_type: str, name: str, number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node[1].op_type = op_type
        model.graph.node[1].attribute.append(helper.make_attribute(name, number))

    return change


def texts(model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="s", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff"])


def named(name: str) -> Change:
    """The inner value."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.node[0].output[0] = model.graph.node[1].input[0] = name

    return change


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
        (dims(*[1 << 62] * 100_000), "'w' has 100,000 axes; at most 64 are accepted"),
        (dims(*[1 << 62] * 64), "needs"),
        (output_dims(*[1 << 62] * 100_000), "'y' has 100,000 axes; at most 64 are accepted"),
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
        (bfloat16_output, "'y' is bfloat16, which NumPy has no type for; export the model with float32 or float16"),
        (double_input, "'x' is float64; float32 is expected: export it in float32, or give --cast-double"),
        (bad_attribute, "checker"),
        (attribute("Conv", "group", 0), "the Conv node that gives 'y' has group = 0"),
        (attribute("RandomNormalLike", "dtype", 1 << 40), "'y' has dtype = 1099511627776"),
        (attribute("Cast", "to", -1), "'y' has to = -1"),
        (texts, "'s' holds b'\\xff', which is not UTF-8"),
        (named("a" * 4097), "aaa...' has 4,097 bytes; at most 4,096 are accepted"),
        (named("a\0b"), "the name 'a\\x00b' has a NUL in it"),
        (normalization(TensorProto.FLOAT, ["h"]), "does not define: SimplifiedLayerNormalization"),
        (normalization(TensorProto.FLOAT, outputs=[]), "does not define: SimplifiedLayerNormalization"),
        (normalization(TensorProto.STRING), "does not define: SimplifiedLayerNormalization"),
        (normalization(999), "does not define: SimplifiedLayerNormalization"),
        (classical("Normalizer", 1 << 40), "does not define: ai.onnx.ml:Normalizer"),
        (classical("SVMRegressor", 1, support_vectors=[1.0], kernel_type=b"\xff"), "a kernel of the kind \ufffd"),
        (constant(), "the Constant node that gives 'w' has no attributes; expected one of value,"),
        (constant(helper.make_attribute("foo", 1)), "gives 'w' has foo; expected one of value,"),
        (constant(helper.make_attribute("value", 1)), "gives 'w' has value; expected one of value,"),
        (constant(value()), "gives 'w' has value; expected one of value,"),
        (constant(value(t=TensorProto())), "no type"),
        (constant(value(t=TensorProto()), helper.make_attribute("value_int", 1)), "has value, value_int; expected one"),
        (constant(value(ref_attr_name="w")), "takes 'value' from the attributes of a function, and is in none"),
    ],
)
def test_refuses_bad_models(tmp_path: Path, change: Change, message: str) -> None:
    model = linear()
    change(model)
    assert message in refusal(write(tmp_path / "m.onnx", model))


def test_nonfinite_weight_in_a_constant_node_is_refused(tmp_path: Path) -> None:
    model = linear()
    bad = numpy_helper.from_array(np.full((4, 2), np.nan, np.float32))
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=bad))
    assert "'w' holds 8 of 8" in refusal(write(tmp_path / "m.onnx", model))


def test_undefined_value_in_a_subgraph_is_refused(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    branches (float[N] x, bool c) => (float[N] y) {
        y = If(c) <then_branch = then () => (float[N] a) { a = Neg(ghost) },
                   else_branch = otherwise () => (float[N] b) { b = Abs(x) }>
    }"""
    assert "reads 'ghost'" in refusal(write(tmp_path / "m.onnx", onnx.parser.parse_model(text)))


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
