"""A model that crashes, hangs or bloats a native library is refused in one line, and the command lives on."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import proto, quick, samples, weight

from ptqc.cli import main as cli
from ptqc.execution import sandboxed
from ptqc.utils import sandbox

# A library in the place of ONNX Runtime whose sessions do something bad.
LIBRARY = """
import ctypes, os
__version__ = "0"

def crash(): ctypes.string_at(0)
def hang():
    while True: pass
def bloat():
    kept = []
    while True: kept.append(bytearray(1 << 24))
def abort(): os.abort()
def allocate(): raise RuntimeError("Failed to allocate memory for requested buffer")
def refuse(): raise ValueError("told again by the process that asked")

class SessionOptions: pass

class InferenceSession:
    def __init__(self, *given, **named): {loading}()
    def run(self, *given): {running}()
"""
FINE = "str"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: None) -> Path:  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    graph = "g (float[N,8] x) => (float[N,8] y) { y = Gemm(x, w) }"
    onnx.save(proto(graph, w=weight(8, 8)), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", samples(8, count=4))
    return tmp_path


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, loading: str, running: str) -> None:
    """This process has the right library loaded; those that it starts find the other one."""
    (folder / "planted").mkdir()
    library = LIBRARY.replace("{loading}", loading).replace("{running}", running)
    (folder / "planted" / "onnxruntime.py").write_text(library)
    monkeypatch.setattr(sys, "path", [str(folder / "planted"), *sys.path])
    if "hang" in (loading, running):
        monkeypatch.setattr(sandboxed, "SECONDS", 2.0)
        monkeypatch.setattr(sandboxed, "check", lambda *_given: None)  # may take longer where others are at work
    monkeypatch.setattr(sandbox, "LEAST_MEMORY", 2**29)
    monkeypatch.setattr(sandbox, "available_bytes", lambda: 0)


def compile_here(data: str = "x.npy") -> int:
    arguments = ["compile", "m.onnx", "--calibration", data, "--samples", "4", "--bits", "4", "-o", "out"]
    with quick():
        return cli.main([*arguments, "--cache", "cache", "--quiet"])


@pytest.mark.parametrize(
    ("loading", "running", "expected"),
    [
        ("crash", FINE, "loading it in ONNX Runtime 0 crashed (SIGSEGV)"),
        pytest.param("abort", FINE, "loading it in ONNX Runtime 0 crashed (SIGABRT)", marks=pytest.mark.slow),
        ("hang", FINE, "loading it in ONNX Runtime 0 did not finish within 2 s"),
        ("bloat", FINE, "loading it in ONNX Runtime 0 needs more memory than the"),
        (FINE, "crash", "a run in ONNX Runtime 0 crashed (SIGSEGV)"),
        (FINE, "allocate", "a run in ONNX Runtime 0 needs more memory than the"),
    ],
)
def test_it_is_refused_in_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    loading: str,
    running: str,
    expected: str,
) -> None:
    plant(folder, monkeypatch, loading, running)
    assert compile_here() == 2
    message = capsys.readouterr().err
    assert f"ptqc: m.onnx: {expected}" in message
    assert "export the model again" in message
    assert message.count("\n") == 1
    assert not (folder / "out").exists()


def test_drawn_samples_are_tried_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(folder, monkeypatch, FINE, "crash")
    assert compile_here("synthetic") == 2
    assert "a run in ONNX Runtime 0 crashed (SIGSEGV)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("loading", "running"), [(FINE, "refuse"), pytest.param("refuse", FINE, marks=pytest.mark.slow)]
)
def test_an_error_of_a_library_is_left_to_the_process_that_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, loading: str, running: str
) -> None:
    plant(folder, monkeypatch, loading, running)
    assert compile_here() == 0
    assert (folder / "out").exists()


def test_a_crash_of_the_checker_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "planted").mkdir()
    code = "import ctypes\ndef load(*given, **named): ctypes.string_at(0)"
    (folder / "planted" / "onnx.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(folder / "planted"), *sys.path])
    assert compile_here() == 2
    assert "ptqc: m.onnx: parsing it crashed (SIGSEGV)" in capsys.readouterr().err


def test_a_sound_model_passes_both_trials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[sandbox.Ended] = []
    right = sandbox.run
    monkeypatch.setattr(sandboxed.sandbox, "run", lambda *arguments: seen.append(right(*arguments)) or seen[-1])
    assert compile_here() == 0
    assert [result.problem for result in seen] == [None, None]
    assert seen[0].said == "ONNX's checker"
    assert seen[1].said.startswith("a run in ONNX Runtime")
    assert (folder / "out").exists()
