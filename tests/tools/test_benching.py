"""`ptqc bench` of ONNX files: every operator that takes time, and times that add up to the whole."""

import json
from pathlib import Path

import onnx
import pytest
from compiling import proto, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.cli.main import main
from ptqc.errors import CalibrationError, UsageError
from ptqc.tools import benching
from ptqc.tools.benching import FileBench


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "SECONDS", 0.1)


@pytest.fixture(scope="module")
def made(small: Artifact) -> Artifact:
    return small


def test_operators_add_up_to_the_whole(made: Artifact) -> None:
    result = ptqc.bench(made.folder)
    assert isinstance(result, FileBench)
    assert sum(operator.nanoseconds for operator in result.operators) == pytest.approx(result.nanoseconds, rel=1e-6)
    assert ("Conv", "QLinearConv") in {(operator.op_type, operator.kernel) for operator in result.operators}
    assert str(result).splitlines()[0].split()[:3] == ["operator", "kernel", "µs"]


def test_the_larger_product_takes_longer(tmp_path: Path) -> None:
    model = proto(
        "g (float[64,512] x) => (float[64,512] y) { s = MatMul(x, small)  r = Relu(s)  l = MatMul(r, large) "
        " z = Relu(l)  y = MatMul(z, back) }",
        small=weight(512, 32), large=weight(32, 2048), back=weight(2048, 512),
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    result = ptqc.bench(tmp_path / "m.onnx")
    assert isinstance(result, FileBench)
    times = {operator.value: operator.nanoseconds for operator in result.operators}
    assert times["y"] > times["s"]


def test_json(made: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(made.path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["command"], result["threads"]) == ("bench", 1)
    assert sum(entry["microseconds"] for entry in result["operators"]) == pytest.approx(1e3 * result["milliseconds"])


def test_options_of_libraries_are_refused(made: Artifact) -> None:
    with pytest.raises(UsageError, match=r"has no native library.*leave out --threads"):
        ptqc.bench(made.folder, threads=2)


def test_where_nothing_can_be_drawn_an_artifact_helps(tmp_path: Path) -> None:
    onnx.save(proto("g (int64[N,T] a) => (int64[N,T] y) { y = Neg(a) }"), tmp_path / "m.onnx")
    with pytest.raises(CalibrationError, match="none can be generated: give an artifact, which has samples"):
        ptqc.bench(tmp_path / "m.onnx")
