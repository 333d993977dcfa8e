"""A disk that fails from any change of a file on: exit code 3 in one line, nothing half, the same bytes afterwards."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

PROGRAM, SOURCE = Path(__file__).with_name("failing.py"), Path(__file__).with_name("failing.c")
ERRORS = ("ENOSPC", "EIO", "EROFS")
Outcome = dict[str, Any]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a disk fail."""
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs gcc and Linux to come between a process and its disk")
    library = tmp_path_factory.mktemp("disk") / "failing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def outcomes(disk: Path, folder: Path, error: str, kind: str, numbers: Sequence[int]) -> Iterator[Outcome]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(PROGRAM), str(folder), error, kind, *map(str, numbers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": str(disk)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


def faults(outcome: Outcome, error: str, forced: bool, wanted: dict[str, str]) -> list[str]:
    """What is wrong. A disk from which nothing can be removed keeps leftovers until the next compile."""
    text, code, then = outcome["told"], outcome["code"], outcome["next"]
    there = ["out"] if forced or code == 0 else []
    wrong = {
        "exit code": code not in (0, 3),
        "message": text != "" if code == 0 else not (text.startswith("ptqc: ") and text.count("\n") == 1),
        "output": outcome["made"] != wanted if code == 0 else not outcome["untouched"],
        "left behind": error == "ENOSPC" and (outcome["left"] != there or outcome["temporary"] != []),
        "next compile": (then["code"], then["told"]) != (0, ""),
        "other bytes": then["files"] != wanted,
        "left for good": then["left"] != ["out"] or then["stored"] > 0,
    }
    return [name for name, is_so in wrong.items() if is_so]


def bad(disk: Path, folder: Path, error: str, kind: str, numbers: Sequence[int]) -> dict[int, Any]:
    """Faults by number; the first run is on a disk that works."""
    fine, *result = outcomes(disk, folder, error, kind, [0, *numbers])
    assert fine["code"] == 0
    wrong = {one["number"]: (faults(one, error, kind == "forced", fine["made"]), one) for one in result}
    return {number: one for number, one in wrong.items() if one[0]}


def changes(disk: Path, folder: Path, kind: str) -> int:
    """How many changes of files a compile makes."""
    (fine,) = outcomes(disk, folder, "EIO", kind, [0])
    return int(fine["changes"])


@pytest.mark.long
def test_a_sample_of_failures(disk: Path, tmp_path: Path) -> None:
    assert bad(disk, tmp_path, "ENOSPC", "forced", (30,)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fresh", "forced"])
@pytest.mark.parametrize("error", ERRORS)
def test_every_failure(disk: Path, tmp_path: Path, error: str, kind: str) -> None:
    count = changes(disk, tmp_path / "counted", kind)
    assert count > 50
    assert bad(disk, tmp_path / "failing", error, kind, range(1, count + 1)) == {}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"code": 70}, "exit code"),
        ({"told": "ptqc: one\nTraceback\n"}, "message"),
        ({"untouched": False}, "output"),
        ({"left": [".out.ptqc-1", "out"]}, "left behind"),
        ({"temporary": ["ptqc-1"]}, "left behind"),
        ({"code": 0, "told": "", "made": {"model.onnx": "2"}}, "output"),
        (
            {"next": {"code": 70, "told": "x", "left": ["out"], "files": {"model.onnx": "1"}, "stored": 0}},
            "next compile",
        ),
        ({"next": {"code": 0, "told": "", "left": ["out"], "files": {"model.onnx": "2"}, "stored": 0}}, "other bytes"),
        (
            {"next": {"code": 0, "told": "", "left": ["out"], "files": {"model.onnx": "1"}, "stored": 9}},
            "left for good",
        ),
    ],
)
def test_each_fault_would_be_found(change: Outcome, wrong: str) -> None:
    wanted = {"model.onnx": "1"}
    then = {"code": 0, "told": "", "left": ["out"], "files": wanted, "stored": 0}
    fine = {"code": 3, "told": "ptqc: full\n", "left": ["out"], "temporary": [], "untouched": True, "made": {}}
    assert faults({**fine, "next": then}, "ENOSPC", True, wanted) == []
    assert faults({**fine, "next": then, **change}, "ENOSPC", True, wanted) == [wrong]
