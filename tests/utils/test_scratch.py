"""A folder for files that nobody else sees goes with what holds it, even where its process was killed."""

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ptqc.errors import Interrupted
from ptqc.utils import scratch as scratch_module
from ptqc.utils.scratch import Scratch, scratch

PROGRAM = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ptqc.errors import Interrupted
from ptqc.utils import scratch as scratch_module
from ptqc.utils.scratch import Scratch, scratch
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


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_of_temporary_files_is_told_with_its_name(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails to be written does not say where it was to be."""
    monkeypatch.setattr(scratch_module, "_is_full", lambda: True)
    text = rf"No space left on device in {room}, .* the environment variable TMPDIR"
    with pytest.raises(Interrupted, match=text), scratch():
        full()
    assert list(room.iterdir()) == []


def test_another_full_disk_is_not_taken_for_it() -> None:
    with pytest.raises(OSError, match="No space left"), scratch():
        full()


def test_no_room_for_the_folder_itself(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(Interrupted, match=f"in {room}"), scratch():
        pass
