"""Runtimes of others run in processes of their own: what they refuse, and how they end, is an error that says so."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, weight

from ptqc.errors import TargetError, UsageError
from ptqc.runtime import foreign
from ptqc.runtime.foreign import LayerPlacement, run_in

# What the process of a runtime finds in the place of OpenVINO.
FAKES = {
    "crash": "import os\ndef Core(): os.abort()\n",
    "hang": "import time\ndef Core(): time.sleep(600)\n",
    "corrupt": "raise ImportError('libopenvino.so: file too short')\n",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(proto("g (float[1,4] x) => (float[1,3] y) { y = Gemm(x, w) }", w=weight(4, 3)), path)
    return path


FEEDS = {"x": np.ones((1, 4), np.float32)}


@pytest.mark.parametrize("name", ["openvino", "qnn"])
def test_outputs_come_back(name: str, model: Path) -> None:
    pytest.importorskip(foreign.runtime_named(name).module, reason=f"needs pip install 'ptqc[{name}]'")
    run = run_in(name, model, [FEEDS, FEEDS])
    np.testing.assert_allclose(run.outputs[1]["y"], weight(4, 3).sum(0, keepdims=True), rtol=1e-3, atol=1e-3)
    assert run.placement.layers == 0
    assert len(run.placement.others) == 1


def test_a_runtime_that_is_not_known_is_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="runtime is 'tensorrt'; known: litert, openvino, qnn"):
        run_in("tensorrt", model, [FEEDS])


def test_a_runtime_that_is_not_installed_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "find_spec", lambda _name: None)
    with pytest.raises(TargetError, match=r"Qualcomm HTP is not installed: pip install 'ptqc\[qnn\]'"):
        run_in("qnn", model, [FEEDS])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("crash", r"OpenVINO crashed \(SIGABRT\)"),
        ("hang", r"OpenVINO did not finish within 3 s"),
        ("corrupt", r"OpenVINO .* refuses it: libopenvino.so: file too short"),
    ],
)
def test_how_it_ends_is_told(
    kind: str, message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "openvino.py").write_text(FAKES[kind])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "fake"), *sys.path])
    with pytest.raises(TargetError, match=message):
        run_in("openvino", model, [FEEDS], seconds=3 if kind == "hang" else 60)


def test_what_it_refuses_is_told(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'ptqc[openvino]'")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(TargetError, match=r"OpenVINO \S+ refuses it"):
        run_in("openvino", path, [FEEDS])


def test_files_that_it_writes_are_kept_where_asked(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs pip install 'ptqc[qnn]'")
    run = run_in("qnn", model, [FEEDS], tmp_path, chip="v75")
    for path in run.files.values():
        assert path.parent == tmp_path
        assert path.stat().st_size > 0


def test_a_placement_in_words() -> None:
    assert str(LayerPlacement(3)) == "3 of 3 layers on integers"
    others = dict.fromkeys("abcd", "in f32")
    assert str(LayerPlacement(3, others)) == "3 of 7 layers on integers (not a in f32, b in f32, c in f32, …)"
    assert str(LayerPlacement(1, {}, ["Relu r"])) == "1 of 1 layers on integers, 1 operators left to the CPU"
