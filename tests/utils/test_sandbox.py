"""Processes with limits: how each kind of end is told, and that the limits hold."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ptqc.utils import sandbox

ENDS = {
    "fine": ("print('done')", None),
    "crash": ("import ctypes; print('reading'); ctypes.string_at(0)", "crashed (SIGSEGV)"),
    "abort": ("import os; os.abort()", "crashed (SIGABRT)"),
    "error": ("raise ValueError('planted')", "failed (exit code 1)"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by the system (SIGKILL)"),
    "greedy": ("bytearray(1 << 50)", "needs more memory than the"),
    "greedy at length": ("kept = []\nwhile True: kept.append(bytearray(1 << 26))", "needs more memory than the"),
    "endless": ("print('begun', flush=True)\nwhile True: pass", "did not finish within 1 s"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules sandboxed processes can run, under small limits."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sandbox, "LEAST_MEMORY", 2**29)
    monkeypatch.setattr(sandbox, "available_bytes", lambda: 0)
    return tmp_path


def ended(place: Path, code: str, seconds: float = 30.0, *arguments: str) -> sandbox.Ended:
    (place / "planted.py").write_text(code)
    return sandbox.run("planted", arguments, seconds)


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ended_is_told(place: Path, name: str) -> None:
    code, text = ENDS[name]
    problem = ended(place, code, 1.0 if name == "endless" else 30.0).problem
    assert problem is None if text is None else problem is not None and problem.startswith(text)


def test_the_last_thing_it_said_is_known(place: Path) -> None:
    assert ended(place, "print('one')\nprint('two')").said == "two"
    result = ended(place, "import os, sys; print('here', flush=True); print('why', file=sys.stderr); sys.exit(5)")
    assert result == sandbox.Ended("failed (exit code 5): why", "here", 5, "why\n")


def test_the_end_is_known_by_number(place: Path) -> None:
    assert ended(place, "import ctypes; ctypes.string_at(0)").code == -signal.SIGSEGV
    assert ended(place, "while True: pass", 1.0).code is None


def test_it_works_in_the_folder_that_is_given(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (place / "planted.py").write_text("import os; print(os.getcwd())")
    folder = tmp_path_factory.mktemp("elsewhere")
    assert sandbox.run("planted", [], 30.0, folder=folder).said == str(folder)


def test_arguments_and_the_path_of_imports_arrive(place: Path) -> None:
    assert ended(place, "import sys; print(sys.argv[1:])", 30.0, "a b", "-x").said == "['a b', '-x']"
    assert ended(place, "import sys; print(sys.path)").said.count(str(place)) == 1


def test_the_working_folder_is_not_imported_from(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "here").mkdir()
    (place / "here" / "runpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(place / "here")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert ended(place, "print('fine')").problem is None


def test_an_endless_process_is_gone(place: Path) -> None:
    begun = ended(place, "import os; print(os.getpid(), flush=True)\nwhile True: pass", 3.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.said), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the signal of a dead parent is Linux's")
def test_it_ends_with_its_parent(place: Path) -> None:
    (place / "planted.py").write_text(
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    parent = os.fork()
    if parent == 0:
        os.chdir(place)
        sandbox.run("planted", [], 600.0)
        os._exit(0)
    child = _wait_for(place / "pid")
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    _wait_for_end(child)


def _wait_for(path: Path) -> int:
    for _ in range(600):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise TimeoutError(path)


def _wait_for_end(process: int) -> None:
    """Nobody may collect an orphan here, so that a zombie counts as gone."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in "ZX":
            return
        time.sleep(0.05)
    raise TimeoutError(process)
