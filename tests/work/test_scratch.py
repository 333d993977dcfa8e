"""A folder for files that nobody else sees goes with what holds it, even where its process was killed."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ptqc.work.scratch import Scratch

PROGRAM = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ptqc.work.scratch import Scratch
scratch = Scratch()
for name in sys.argv[2:]:
    (scratch.folder / name).write_text("many")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_removed_with_the_last_that_holds_it(room: Path) -> None:
    scratch = Scratch()
    (scratch.folder / "tensors").write_text("many")
    assert list(room.iterdir()) == [scratch.folder]
    del scratch
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("files", [["tensors"], []])
def test_what_a_killed_process_left_is_removed_by_the_next(room: Path, files: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(room), *files], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = room.iterdir()
    assert [path.name for path in left.iterdir()] == files
    scratch = Scratch()
    assert list(room.iterdir()) == [scratch.folder]


def test_what_is_in_use_stays(room: Path) -> None:
    first = Scratch()
    (first.folder / "tensors").write_text("many")
    second = Scratch()
    assert set(room.iterdir()) == {first.folder, second.folder}
