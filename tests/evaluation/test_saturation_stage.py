"""8-bit weights on integer kernels: right on every processor, and where ONNX Runtime saturates, the user is told."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from compiling import compiled, proto, residual, samples, weight

import ptqc
from ptqc.artifact.folder import Artifact
from ptqc.evaluation import judge
from ptqc.execution.agreement import relative
from ptqc.execution.onnxruntime import Runner, session_options
from ptqc.execution.saturation import EXACT_SUMS, IN_FLOAT, saturates
from ptqc.notes import Level

pytestmark = pytest.mark.processor

OPTION = "session.x64quantprecision=1"
TIED = "g (float[N,16] x) => (float[N,16] y) { a = Gemm(x, w, b) r = Relu(a) y = Gemm(r, w, c) }"
EIGHT: dict[str, Any] = {"bits": (8,), "allow_8bit": True, "activations": "integer", "formats": ("int",)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("eight")
    return compiled(residual(), samples(3, 8, 8), folder, **EIGHT)


def test_a_compile_with_eight_bits_warns_where_they_saturate(artifact: Artifact) -> None:
    messages = [note["message"] for note in artifact.manifest["notes"] if note["step"] == "saturation"]
    assert len(messages) == saturates()
    assert all(OPTION in message and "0.0 %" not in message for message in messages)
    assert artifact.manifest["cpu"] == {"saturates_without_vnni": True, "session_option_without_vnni": EXACT_SUMS}
    assert artifact.manifest["results"]["sqnr_db"] > 30


def test_what_saturates_is_no_warning_where_another_runtime_runs_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "saturates", lambda: True)
    monkeypatch.setattr(judge, "_distance", lambda *_: 0.5)
    monkeypatch.setattr(judge.verify, "settings", lambda _: EXACT_SUMS)
    exported: Any = None
    levels = {runtime: judge.saturation_notes(exported, [], runtime)[0].level for runtime in ("onnxruntime", "c")}
    assert levels == {"onnxruntime": Level.WARNING, "c": Level.INFO}


def test_an_artifact_with_eight_bits_is_right_where_they_saturate(artifact: Artifact) -> None:
    printed = ptqc.verify(artifact.folder).checks["kernels"]
    assert "6 integer kernels give what the reference gives" in printed
    assert (OPTION in printed) == saturates()


def test_its_sessions_add_up_exactly(artifact: Artifact) -> None:
    x = samples(3, 8, 8)
    wanted = Runner(artifact.path, options=session_options(optimize=False)).run({"x": x})["y"]
    plain = artifact.session(ort.SessionOptions()).run(["y"], {"x": x})[0]
    assert relative([wanted], [artifact.run({"x": x})["y"]]) < 0.02
    assert relative([wanted], [np.asarray(plain)]) < 0.02 or saturates()


def test_a_weight_of_two_layers_takes_another_option(tmp_path: Path) -> None:
    model = proto(TIED, w=weight(16, 16), b=weight(16), c=weight(16, seed=1))
    result, x = compiled(model, samples(16), tmp_path, **EIGHT), samples(16)
    assert result.manifest["cpu"]["session_option_without_vnni"] == IN_FLOAT
    wanted = Runner(result.path, options=session_options(optimize=False)).run({"x": x})["y"]
    assert relative([wanted], [result.run({"x": x})["y"]]) < 0.02


@pytest.mark.slow
def test_weights_of_seven_bits_need_no_warning(tmp_path_factory: pytest.TempPathFactory) -> None:
    result = compiled(residual(), samples(3, 8, 8), tmp_path_factory.mktemp("seven"), bits=(7,))
    assert not any(note["step"] == "saturation" for note in result.manifest["notes"])
    assert result.manifest["cpu"]["session_option_without_vnni"] == {}


def test_a_layer_of_one_channel_needs_no_option(tmp_path: Path) -> None:
    model = proto(
        "g (float[N,1,9,9] x) => (float[N,1,9,9] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }",
        w=np.full((1, 1, 3, 3), 0.2, np.float32),
    )
    result = compiled(model, np.abs(samples(1, 9, 9)), tmp_path, **EIGHT)
    assert result.manifest["cpu"]["session_option_without_vnni"] == {}
    x = np.full((1, 1, 9, 9), 9, np.float32)
    wanted = Runner(result.path, options=session_options(optimize=False)).run({"x": x})["y"]
    plain = result.session(ort.SessionOptions()).run(["y"], {"x": x})[0]
    assert relative([wanted], [np.asarray(plain)]) < 0.02


@pytest.mark.slow
def test_pairs_that_cannot_saturate_need_no_option(tmp_path: Path) -> None:
    """Where inputs are pairs; depthwise layers may have any codes, and others keep their 7 bits."""
    body = """g (float[N,3,9,9] x) => (float[N,6,1,1] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, first) b = Relu(a)
        c = Conv <pads = [1, 1, 1, 1], group = 8> (b, own) d = Relu(c)
        e = Conv (d, pairs) f = Relu(e) y = GlobalAveragePool(f)
    }"""
    weights = {"first": weight(8, 3, 3, 3), "own": weight(8, 1, 3, 3), "pairs": weight(6, 8, 3, 3)}
    result = compiled(
        proto(body, **weights), samples(3, 9, 9), tmp_path, bits=(7, 8), allow_8bit=True, activations="integer"
    )
    forms = {entry["weight"]: entry["format"] for entry in result.plan["weights"]}
    assert forms == {"first": "int7", "own": "int8", "pairs": "safe8"}
    assert result.manifest["cpu"] == {"saturates_without_vnni": False, "session_option_without_vnni": {}}
    x = samples(3, 9, 9)
    wanted = Runner(result.path, options=session_options(optimize=False)).run({"x": x})["y"]
    assert relative([wanted], [np.asarray(result.session(ort.SessionOptions()).run(["y"], {"x": x})[0])]) < 0.02
    free = compiled(
        proto(body, **weights), samples(3, 9, 9), tmp_path / "a", bits=(7, 8), runtime="arm", activations="integer"
    )
    assert "safe8" not in free.manifest["weights_by_format"]
    assert free.manifest["cpu"]["saturates_without_vnni"] is True
