"""What is told of models without data: the project's own, whose facts are known, and models that compile refuses."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, residual, weight
from onnx import TensorProto, helper

import ptqc
from ptqc.cli import main as cli
from ptqc.errors import ModelError
from ptqc.tools.inspecting import inspect
from ptqc.tools.inspecting.facts import Inspection, Tensor

MODELS = Path(__file__).parents[3] / "models"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    path = tmp_path_factory.mktemp("model") / "residual.onnx"
    onnx.save(residual(), path)
    return inspect(path)


def test_inputs_and_outputs(found: Inspection) -> None:
    (x,), (y,) = found.inputs, found.outputs
    assert (x.name, x.dtype, x.shape) == ("x", "float", ("N", 3, 8, 8))
    assert x.content.startswith("an image of 3 channels, channels first; the graph does not say how pixels are scaled")
    assert (y.name, y.shape, y.content) == ("y", ("N", 10), "")


def test_layers_and_products_are_counted(found: Inspection) -> None:
    assert found.found is not None
    assert found.found.layers == 4
    assert found.found.parameters == 16 * 27 + 32 * 144 + 32 * 288 + 320
    assert found.found.macs == 64 * 16 * 27 + 16 * 32 * 144 + 16 * 32 * 288 + 320
    assert found.operators["Conv"] == 3
    assert list(found.operators.values()) == sorted(found.operators.values(), reverse=True)


def test_sizes_are_in_order(found: Inspection) -> None:
    facts = found.found
    assert facts is not None
    assert 0 < facts.at_least < facts.smallest < facts.sensible["13%"] < facts.sensible["25%"] < found.bytes
    assert facts.seconds is not None
    assert 0 < facts.seconds < 60
    assert 1e8 < facts.memory < 2e9


def test_what_stays_float_is_told_with_the_reason(found: Inspection) -> None:
    assert found.found is not None
    assert found.found.stays_float == ()
    detector = inspect(MODELS / "tiny_detector_silu.onnx").found
    assert detector is not None
    assert [(kind.operator, kind.reason) for kind in detector.stays_float] == [
        ("DepthToSpace", "ONNX Runtime has no integer kernel for it")
    ]


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_operators_count(kind: str, direction: str) -> None:
    """Each of 7 steps multiplies both matrices of all gates; the batch is free."""
    gates, directions = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind], {"forward": 1, "bidirectional": 2}[direction]
    w, r = weight(directions, gates * 5, 12), weight(directions, gates * 5, 5)
    text = f"g (float[7,N,12] x) => (float[7,{directions},N,5] y) {{"
    text += f' y = {kind} <hidden_size = 5, direction = "{direction}"> (x, w, r) }}'
    result = ptqc.inspect(proto(text, w=w, r=r)).found
    assert result is not None
    assert result.macs == 7 * (w.size + r.size)


def test_products_of_what_is_computed_count() -> None:
    text = "g (float[N,6,8] q, float[N,8,9] k) => (float[N,6,9] y) { a = MatMul(q, w) y = MatMul(a, k) }"
    result = ptqc.inspect(proto(text, w=weight(8, 8))).found
    assert result is not None
    assert result.macs == 6 * 8 * 8 + 6 * 9 * 8


def test_free_sizes_are_those_of_generated_samples() -> None:
    text = "g (int64[N,T] ids) => (float[N,T,6] y) { a = Gather(table, ids) b = MatMul(a, w) y = MatMul(b, v) }"
    result = inspect(proto(text, table=weight(9, 8), w=weight(8, 4), v=weight(4, 6)))
    assert result.inputs[0].content == "token ids or other indices"
    assert result.found is not None
    assert result.found.free_sizes == {"T": 32}
    assert result.found.macs == 32 * (8 * 4 + 4 * 6)
    assert result.found.seconds is not None
    assert str(result).count("at T 32") == 2


def test_nothing_is_drawn_to_know_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the larger input would fill 4 GB."""
    monkeypatch.setattr("ptqc.calibration.synthetic._sample", pytest.fail)
    graph = """g (float[N,32768,32768] x, int64[N,T] ids) => (float[N,32768,32768] y, float[N,T,16] z) {
        y = Relu(x)
        a = Gather(table, ids)
        z = MatMul(a, w)
    }"""
    result = inspect(proto(graph, table=weight(20, 16), w=weight(16, 16))).found
    assert result is not None
    assert result.free_sizes == {"T": 32}


def test_sizes_that_nothing_suggests_leave_the_products_open() -> None:
    result = inspect(proto("g (float[N,T,8] x) => (float[N,T,4] y) { y = MatMul(x, w) }", w=weight(8, 4)))
    assert result.found is not None
    assert (result.found.macs, result.found.seconds, result.found.free_sizes) == (None, None, {})
    assert "unknown, since some sizes are free" in str(result)


def test_no_data_no_word_of_accuracy() -> None:
    graph = "g (float[N,8] x, float[N,4] r, float[N,4] s) => (float[N,4] y, float[N,4] z) "
    text = str(inspect(proto(f"{graph} {{ y = MatMul(x, w) z = Add(s, r) }}", w=weight(8, 4))))
    assert "1 Add: its neighbours stay float" in text
    assert "accuracy" not in text


def test_missing_data_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(residual(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    assert cli.main(["inspect", str(path)]) == 2
    printed = capsys.readouterr()
    told_out = " ".join(printed.out.split())
    assert f"{path.stat().st_size:,} bytes without its data, which are missing: m.data, opset" in told_out
    assert "REFUSED" in told_out
    assert printed.err == "ptqc: `ptqc compile` would refuse this model, for the reason above\n"
    assert cli.main(["inspect", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["missing"] == ["m.data"]
    assert document["error"] == {"kind": "ModelError", "message": document["refusal"], "exit_code": 2}


def test_layers_in_branches_are_counted_apart() -> None:
    first = "then_branch = t () => (float[N,32] a) { a = MatMul(x, w) }"
    second = "else_branch = e () => (float[N,32] b) { b = MatMul(x, v) }"
    graph = f"g (float[N,64] x, bool c) => (float[N,32] y) {{ y = If(c) <{first}, {second}> }}"
    result = inspect(proto(graph, w=weight(64, 32), v=weight(64, 32)))
    assert result.found is not None
    assert (result.found.layers, result.found.inner_layers, result.found.seconds) == (0, 2, None)
    assert "0 and 2 in branches or loops with 4,096 weights" in " ".join(str(result).split())


def test_the_text_names_everything(found: Inspection) -> None:
    text = str(found)
    assert max(map(len, text.splitlines())) <= 100
    for part in ("x (float, N x 3 x 8 x 8)", "4 with 14,", "smallest between ", "--budget 25%", "processor time"):
        assert part in " ".join(text.split())
    assert "REFUSED" not in text


def test_a_normalization_in_the_graph_is_told(tmp_path: Path) -> None:
    graph = "g (float[N,3,8,8] x) => (float[N,4,8,8] y) { a = Div(x, s) y = Conv<pads=[1,1,1,1]>(a, w) }"
    onnx.save(proto(graph, s=np.float32(255), w=weight(4, 3, 3, 3)), tmp_path / "m.onnx")
    (x,) = inspect(tmp_path / "m.onnx").inputs
    assert "pixels from 0 to 255, by the normalization after the input" in x.content


def test_a_refused_model_is_described_with_the_refusal(tmp_path: Path) -> None:
    node = helper.make_node("Mystery", ["x"], ["y"], domain="elsewhere")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("elsewhere", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    result = inspect(tmp_path / "m.onnx")
    assert result.found is None
    assert result.inputs == (Tensor("x", "float", ("N", 4)),)
    assert result.operators == {"Mystery": 1}
    assert result.refusal is not None
    assert "Mystery" in result.refusal
    assert "REFUSED" in str(result)
    with pytest.raises(ModelError) as refusal:
        ptqc.compile(tmp_path / "m.onnx", calibration=np.zeros((4, 4), np.float32), output=tmp_path / "out")
    assert str(refusal.value) == result.refusal


def test_a_model_in_memory(found: Inspection) -> None:
    result = inspect(residual())
    assert result.path == "the onnx.ModelProto"
    assert result.found == found.found


def test_what_is_no_onnx_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("hello")
    with pytest.raises(ModelError, match="is a text file"):
        inspect(tmp_path / "m.onnx")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], found: Inspection) -> None:
    assert cli.main(["inspect", found.path]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert cli.main(["inspect", found.path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["found"]["smallest"] == found.found.smallest if found.found else False
    assert document["inputs"][0]["shape"] == ["N", 3, 8, 8]
    assert cli.main(["inspect", str(tmp_path / "no.onnx")]) == 2


def test_external_data_without_a_location_are_a_reason_for_refusal(tmp_path: Path) -> None:
    model = residual()
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    result = inspect(tmp_path / "model.onnx")
    assert "has external data without a location" in (result.refusal or "")
    assert result.missing == ()
