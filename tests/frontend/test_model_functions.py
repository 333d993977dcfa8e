"""Functions that a model brings."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from linear_model import linear, refusal, write
from onnx import helper

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
