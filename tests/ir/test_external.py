import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from compiling import compiled, proto, samples, weight
from onnx import numpy_helper

from ptqc.execution import onnxruntime
from ptqc.frontend.model_files import read_bytes
from ptqc.ir import external
from ptqc.ir.external import hold_external

GRAPH = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y) {
    a = Add(x, w)
    y = If(c) <then_branch = t () => (float[2] b) { k = Constant <value = float[2] {3, 4}> ()  b = Mul(a, k) },
               else_branch = e () => (float[2] o) { o = Sub(a, v) }>
}"""


def saved(folder: Path) -> Path:
    """A model with an initializer of the graph, one of a branch, and a Constant in a branch, all in one file."""
    model = onnx.parser.parse_model(GRAPH)
    model.graph.initializer.append(numpy_helper.from_array(np.array([10, 20], np.float32), "w"))
    then_branch, else_branch = (attribute.g for attribute in model.graph.node[1].attribute)
    else_branch.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "v"))
    tensors = [model.graph.initializer[0], else_branch.initializer[0], then_branch.node[0].attribute[0].t]
    data = b""
    for tensor in tensors:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))  # as raw data
        onnx.external_data_helper.set_external_data(tensor, "sub/weights.bin", len(data), 8)
        data += tensor.raw_data
        tensor.ClearField("raw_data")
    (folder / "sub").mkdir()
    (folder / "sub" / "weights.bin").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("mapped", [False, True])
def test_every_tensor_holds_its_data(tmp_path: Path, mapped: bool) -> None:
    path = saved(tmp_path)
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    hold_external(model, path.parent, mapped=mapped)
    session = onnxruntime.open_session(ir.to_proto(model).SerializeToString(), onnxruntime.session_options())
    for chosen, wanted in ((True, [33, 84]), (False, [10, 19])):
        (result,) = session.run(None, {"x": np.ones(2, np.float32), "c": np.array(chosen)})
        assert result.tolist() == wanted


def test_a_model_too_large_for_memory_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles to the same bytes as from memory."""
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.onnx"
    graph = "g (float[N,16] x) => (float[N,8] y) { h = Gemm(x, w, b) r = Relu(h) i = Identity(r) y = Gemm(i, v) }"
    model = proto(graph, w=weight(16, 32), b=weight(32), v=weight(32, 8, seed=1))
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    result = {}
    for limit in (1, external.IN_MEMORY_LIMIT):
        monkeypatch.setattr(external, "IN_MEMORY_LIMIT", limit)
        value = Path(os.path.relpath(path))
        result[limit] = compiled(value, samples(16), tmp_path / str(limit), bits=(2, 4), pipeline="light")
    assert len({artifact.path.read_bytes() for artifact in result.values()}) == 1


@pytest.mark.parametrize("size", [2**28 - 1, 2**28])
def test_files_of_256_mib_are_mapped(tmp_path: Path, size: int) -> None:
    with (tmp_path / "model.onnx").open("wb") as file:
        file.truncate(size)
    assert isinstance(read_bytes(tmp_path / "model.onnx"), bytes) == (size < 2**28)
