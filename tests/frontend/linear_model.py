"""A small model to be written, changed and read."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from ptqc.errors import ModelError
from ptqc.frontend import read_model

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
