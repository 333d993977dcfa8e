"""kill −9 at random times of a real compile: no process stays, the earlier output does, the next one is the same."""

import os
import random
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from compiling import digests, samples

import ptqc
from ptqc.utils.store import Store, clear, contents

TIMES = 50
MARK = "PTQC_TEST_PROCESS"
SECONDS = 10.0  # that the processes of a killed one may take to end
OPTIONS = ("--samples", "8", "--bits", "3,4", "--force", "--quiet")


def command(model: Path, folder: Path, *more: str) -> list[str]:
    arguments = ["compile", str(model), "--calibration", str(folder.parent / "x.npy")]
    places = ["-o", str(folder / "work" / "out"), "--cache", str(folder / "cache")]
    return [sys.executable, "-m", "ptqc", *arguments, *places, *OPTIONS, *more]


def environment(folder: Path, mark: str) -> dict[str, str]:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "tmp")}
    return {**os.environ, **paths, MARK: mark}


def prepare(folder: Path) -> None:
    for name in ("work", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def whole(model: Path, folder: Path, *more: str) -> dict[str, str]:
    """The files of a compile that nothing stops."""
    prepare(folder)
    done = subprocess.run(
        command(model, folder, *more), env=environment(folder, ""), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return digests(folder / "work" / "out")


def kill(model: Path, folder: Path, seconds: float) -> list[int]:
    """Kill a compile after some seconds; its processes that are still there a while later."""
    mark = uuid.uuid4().hex
    with subprocess.Popen(command(model, folder), env=environment(folder, mark), stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()
    end = time.monotonic() + SECONDS
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def marked(mark: str) -> list[int]:
    """Processes that a compile with this mark started, itself included."""
    result = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                result.append(int(path.parent.name))
        except OSError:  # it is gone, or somebody else's
            continue
    return result


def faults(model: Path, folder: Path, seconds: float, wanted: dict[str, str]) -> list[str]:
    """What is wrong behind a compile that is killed, and the one that follows it."""
    prepare(folder)
    before = digests(folder / "work" / "out") if (folder / "work" / "out").exists() else None
    orphans = kill(model, folder, seconds)
    out = folder / "work" / "out"
    now = digests(ptqc.load(out).folder) if out.exists() else None
    wrong = {"orphans": orphans != [], "previous output": now not in (before, wanted)}
    wrong["other bytes"] = whole(model, folder) != wanted
    wrong["left behind"] = [path.name for path in (folder / "work").iterdir()] != ["out"]
    store = Store(folder / "cache")
    clear(store)
    wrong["left in the store"] = contents(store).bytes != 0
    return [name for name, is_so in wrong.items() if is_so]


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_at_any_time(shared_data: Path, tmp_path: Path) -> None:
    model = shared_data / "models" / "mlperftiny_kws_dscnn.onnx"
    np.save(tmp_path / "x.npy", samples(1, 49, 10, count=16))
    whole(model, tmp_path / "earlier", "--seed", "1")
    started = time.monotonic()
    wanted = whole(model, tmp_path / "undisturbed")
    longest = time.monotonic() - started
    draw, result = random.Random(4711), {}
    for number in range(TIMES):
        folder = tmp_path / str(number)
        if number % 2:
            shutil.copytree(tmp_path / "earlier" / "work" / "out", folder / "work" / "out")
        moment = draw.uniform(0, longest)
        result[number, round(moment, 2)] = faults(model, folder, moment, wanted)
        shutil.rmtree(folder)
    assert {key: wrong for key, wrong in result.items() if wrong} == {}


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_process_that_stays_would_be_found() -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env={**os.environ, MARK: mark}, stdin=-1, stdout=-1) as process:
        assert process.stdout
        process.stdout.readline()  # its environment can be read a little after it has started
        assert marked(mark) == [process.pid]
        process.kill()
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("orphans", "files", "left", "wrong"),
    [
        ([], {"model.onnx": "1"}, (), []),
        ([7], {"model.onnx": "1"}, (), ["orphans"]),
        ([], {"model.onnx": "2"}, (), ["other bytes"]),
        ([], {"model.onnx": "1"}, (".out.ptqc-1",), ["left behind"]),
    ],
)
def test_each_fault_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    orphans: list[int],
    files: dict[str, str],
    left: tuple[str, ...],
    wrong: list[str],
) -> None:
    def compiled(_model: Path, folder: Path) -> dict[str, str]:
        for name in ("out", *left):
            (folder / "work" / name).mkdir()
        return files

    here = sys.modules[__name__]
    monkeypatch.setattr(here, "kill", lambda *_given: orphans)
    monkeypatch.setattr(here, "whole", compiled)
    assert faults(tmp_path, tmp_path, 0.0, {"model.onnx": "1"}) == wrong
