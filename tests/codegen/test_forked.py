"""What tests fork does what a process of its own does, and ends as one does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.tirx", reason="forks are of a process that has imported Apache TVM")
if sys.platform != "linux":
    pytest.skip("tests fork on Linux alone", allow_module_level=True)

from ptqc.codegen.kernels.process import REPORT
from ptqc.utils import sandbox

PROCESS, KNOWN = "ptqc.codegen.kernels.process", "ptqc.codegen.kernels.lowering:operators"


def test_it_does_what_a_process_of_its_own_does(
    own_process: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "forked", tmp_path / "own"]
    for folder in folders:
        folder.mkdir()
    assert sandbox.run(PROCESS, [KNOWN, str(folders[0])], 60.0) == sandbox.Ended(None, "")
    monkeypatch.setattr(sandbox, "_done", own_process)
    assert sandbox.run(PROCESS, [KNOWN, str(folders[1])], 60.0) == sandbox.Ended(None, "")
    forked, own = (json.loads((folder / REPORT).read_text()) for folder in folders)
    assert "Conv" in own["operators"]
    assert forked == own


def test_it_is_no_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tests before this one left behind."""
    monkeypatch.delattr(subprocess, "run")
    assert sandbox.run(PROCESS, [KNOWN, str(tmp_path)], 60.0) == sandbox.Ended(None, "")


def test_its_failure_is_told(tmp_path: Path) -> None:
    result = sandbox.run(PROCESS, [KNOWN, str(tmp_path / "absent")], 60.0)
    assert result.code == 1
    assert result.problem is not None
    assert result.problem.startswith("failed (exit code 1): ")
    assert "FileNotFoundError" in result.errors


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / REPORT)  # which nobody reads
    result = sandbox.run(PROCESS, [KNOWN, str(tmp_path)], 0.1)
    assert result.problem == "did not finish within 0 s"
    assert result.code is None


def test_what_is_no_worker_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *arguments, **named: started.append(arguments) or real(*arguments, **named)
    )
    (tmp_path / "planted.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(sandbox.run("planted", [], 30.0).problem).startswith("crashed (SIGABRT)")
    assert len(started) == 1
