"""Functions that a model brings."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from linear_model import linear, refusal, write
from onnx import helper

from ptqc.execution.onnxruntime import run
from ptqc.frontend import read_model


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


def with_default(**field: Any) -> onnx.ModelProto:
    """A model whose function multiplies with a default of its own."""
    model = with_functions([[]])
    constant = onnx.NodeProto(op_type="Constant", output=["w"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="w")
    function = model.functions[0]
    function.node.insert(0, constant)
    function.node[1].CopyFrom(helper.make_node("Mul", ["x", "w"], ["y"]))
    function.attribute_proto.append(onnx.AttributeProto(name="w", **field))
    return model


def tensor(**fields: Any) -> dict[str, Any]:
    """A default that is one float32."""
    return {"type": onnx.AttributeProto.TENSOR, "t": onnx.TensorProto(dims=[1], data_type=1, **fields)}


def test_a_default_in_the_file_is_read(tmp_path: Path) -> None:
    model = read_model(write(tmp_path / "m.onnx", with_default(**tensor(raw_data=bytes(4))))).model
    assert not run(model, {"x": np.ones((1, 4), np.float32)})["y"].any()


@pytest.mark.parametrize("location", ["secret.bin", "../secret.bin", "/etc/passwd"])
def test_a_default_in_another_file_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(4))
    entry = onnx.StringStringEntryProto(key="location", value=location)
    model = with_default(**tensor(data_location=onnx.TensorProto.EXTERNAL, external_data=[entry]))
    assert "attribute 'w' of function 'f0' has a default in external data" in refusal(write(tmp_path / "m.onnx", model))


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (tensor(raw_data=bytes(8)), "needs 4 bytes of data, it has 8"),
        ({"type": onnx.AttributeProto.GRAPH, "g": onnx.GraphProto()}, "has a graph or a sparse tensor as its default"),
        (
            {"type": onnx.AttributeProto.SPARSE_TENSOR, "sparse_tensor": onnx.SparseTensorProto()},
            "has a graph or a sparse tensor as its default",
        ),
    ],
)
def test_a_bad_default_is_refused(tmp_path: Path, default: dict[str, Any], message: str) -> None:
    assert message in refusal(write(tmp_path / "m.onnx", with_default(**default)))


def test_groups_may_be_an_attribute_of_a_function(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17, "f": 1]>
    g (float[N,2,4,4] x) => (float[N,2,4,4] y) <float[2,1,1,1] w = {1, 2}> { y = f.conv <k = 2> (x, w) }
    <domain: "f", opset_import: ["": 17]> conv <k> (x, w) => (y) { y = Conv <group: int = @k> (x, w) }"""
    assert read_model(write(tmp_path / "m.onnx", onnx.parser.parse_model(text))).model.functions


def test_a_weight_may_be_an_attribute_of_a_function(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17, "f": 1]>
    g (float[N,2] x) => (float[N,2] y) { y = f.product <k = float[2,2] {0, 1, 2, 3}> (x) }
    <domain: "f", opset_import: ["": 17]>
    product <k> (x) => (y) { w = Constant <value: tensor = @k> ()  y = MatMul(x, w) }"""
    source = read_model(write(tmp_path / "m.onnx", onnx.parser.parse_model(text)))
    assert run(source.model, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[2, 4]]
