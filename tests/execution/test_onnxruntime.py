import errno
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import noise, parse

from ptqc.errors import ModelError
from ptqc.execution import onnxruntime as execute
from ptqc.execution.onnxruntime import Runner, open_session, run, session_options
from ptqc.ir import external

GRAPH = "g (float[N, 40] x) => (float[N, 30] y, int64[2] s) { h = MatMul(x, w) r = Relu(h) y = Neg(r) s = Shape(r) }"


@pytest.fixture
def model() -> ir.Model:
    return parse(GRAPH, w=noise(40, 30))


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    hidden = x @ noise(40, 30)
    return {"h": hidden, "y": -np.maximum(hidden, 0), "s": np.array([len(x), 30])}


def check(result: dict[str, np.ndarray], x: np.ndarray, names: list[str]) -> None:
    assert list(result) == names
    for name in names:
        np.testing.assert_allclose(result[name], expected(x)[name], rtol=1e-5, atol=1e-5)


def test_outputs_and_taps(model: ir.Model) -> None:
    x = noise(5, 40)
    check(run(model, {"x": x}), x, ["y", "s"])
    check(run(model, {"x": x}, ["h", "y"]), x, ["y", "s", "h"])


def test_no_outputs_are_none(model: ir.Model) -> None:
    assert Runner(model).run({"x": noise(5, 40)}, []) == {}


def test_a_runner_is_kept_for_many_runs(model: ir.Model) -> None:
    runner = Runner(model, ["h", "y", "h"])
    assert (runner.inputs, runner.outputs) == (["x"], ["y", "s", "h"])
    for rows in (1, 3):
        check(runner.run({"x": noise(rows, 40)}, ["h", "s"]), noise(rows, 40), ["h", "s"])


def test_taps_do_not_change_the_model(model: ir.Model) -> None:
    before = ir.to_proto(model).SerializeToString()
    Runner(model, ["h"])
    assert ir.to_proto(model).SerializeToString() == before
    proto = ir.to_proto(model)
    Runner(proto, ["h"])
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("taps", [[], ["h"]])
def test_a_file(model: ir.Model, tmp_path: Path, external: bool, taps: list[str]) -> None:
    path = tmp_path / "model.onnx"
    ir.save(model, path, external_data="weights.bin" if external else None)
    x = noise(2, 40)
    check(run(path, {"x": x}, taps), x, ["y", "s", *taps])
    check(run(str(path), {"x": x}, taps), x, ["y", "s", *taps])


@pytest.mark.parametrize("taps", [[], ["h"]])
def test_models_too_large_for_a_message_go_through_a_file(
    model: ir.Model, monkeypatch: pytest.MonkeyPatch, taps: list[str]
) -> None:
    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    x = noise(2, 40)
    check(run(model, {"x": x}, taps), x, ["y", "s", *taps])


def test_what_onnx_runtime_refuses_is_a_model_error(model: ir.Model, tmp_path: Path) -> None:
    model.graph[0].op_type = "Nonsense"
    with pytest.raises(ModelError, match=r"cannot load the model: .*Nonsense"):
        Runner(model)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="cannot load the model"):
        Runner(tmp_path / "broken.onnx")


def test_a_full_disk_is_no_fault_of_the_model(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(external, "IN_MEMORY_LIMIT", 1)
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(OSError, match="No space left on device"):
        Runner(model)


def test_an_unknown_tap_is_a_model_error(model: ir.Model) -> None:
    with pytest.raises(ModelError):
        Runner(model, ["nowhere"])


def test_options() -> None:
    plain = session_options(threads=1, optimize=False)
    assert plain.intra_op_num_threads == 1
    assert plain.graph_optimization_level == execute.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert session_options().graph_optimization_level == execute.ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_a_proto_with_taps(model: ir.Model) -> None:
    x = noise(2, 40)
    proto: onnx.ModelProto = ir.to_proto(model)
    check(Runner(proto, ["h"]).run({"x": x}), x, ["y", "s", "h"])


def test_what_fails_is_raised_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_given: object) -> None:
        raise RuntimeError("SystemError : 30")

    monkeypatch.setattr(execute.ort.InferenceSession, "_create_inference_session", fail)
    with pytest.raises(RuntimeError, match="30"):
        open_session(b"a model", session_options())
    assert capsys.readouterr().out == ""
