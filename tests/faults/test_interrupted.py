"""Ctrl-C and SIGTERM at any time of a compile: over in seconds, nothing left, the next one gives the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiling import digests, proto, samples, weight

GRAPH = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
# A background shell may have it ignored. The word tells that Python is there to hear signals.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ptqc.cli import main
from ptqc.utils import interrupts
right = interrupts.listen
def listen():
    right()
    print("listening", flush=True)
interrupts.listen = listen
{planted}
main.run()
"""
# Most of a small compile is imports and measuring latency.
QUICK = """
from compiling import alone
from ptqc.execution import speed
alone()
speed.SECONDS = 0.02
"""
SECONDS = 5.0
TIMES = 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    onnx.save(proto(GRAPH, w=weight(8, 8), v=weight(8, 8, seed=1)), folder / "m.onnx")
    np.save(folder / "x.npy", samples(8, count=8))
    return folder


def start(place: Path, folder: Path, planted: str = QUICK) -> subprocess.Popen[str]:
    """A compile that has begun, with folders of its own."""
    for name in ("work", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    arguments = ["compile", str(place / "m.onnx"), "--calibration", str(place / "x.npy"), "--bits", "3,4"]
    arguments += ["-o", "out", "--cache", str(folder / "cache"), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{planted}", planted), *arguments],
        cwd=folder / "work",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def tree(folder: Path) -> list[str]:
    """What there is in the folders of a compile, but for the store and the mark that ONNX Runtime leaves."""
    paths = (path for name in ("work", "tmp") for path in (folder / name).iterdir() if path.name != ".ses")
    return sorted(str(path.relative_to(folder)) for path in paths)


@pytest.fixture(scope="module")
def usual(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    """The files of a compile that nothing disturbs, and the seconds that it takes."""
    folder = tmp_path_factory.mktemp("usual")
    process = start(place, folder)
    started = time.monotonic()
    assert process.communicate() == ("", "")
    return digests(folder / "work" / "out"), time.monotonic() - started


def interrupt(
    place: Path, folder: Path, number: signal.Signals, after: float, planted: str = QUICK
) -> tuple[int, float, str]:
    """The exit code, the seconds from the signal to the end, and what was said."""
    process = start(place, folder, planted)
    time.sleep(after)
    process.send_signal(number)
    sent = time.monotonic()
    _, text = process.communicate(timeout=60)
    return process.returncode, time.monotonic() - sent, text


def check(
    place: Path, folder: Path, wanted: dict[str, str], number: signal.Signals, after: float, planted: str = QUICK
) -> bool:
    """Interrupt a compile and do it again. Whether the signal came before its end."""
    code, seconds, text = interrupt(place, folder, number, after, planted)
    if code == 0:  # it was faster, or about to end
        assert digests(folder / "work" / "out") == wanted
        return False
    assert code == 128 + number, text
    assert seconds <= SECONDS
    assert text.startswith("ptqc: interrupted")
    assert text.count("\n") == 1
    left = tree(folder)
    assert left in ([], ["work/out"])  # the whole output, where it had just come to be
    assert process_again(place, folder, left) == wanted
    return True


def process_again(place: Path, folder: Path, left: list[str]) -> dict[str, str]:
    if not left:
        assert start(place, folder).communicate() == ("", "")
    assert tree(folder) == ["work/out"]
    return digests(folder / "work" / "out")


def times(count: int, seconds: float) -> list[tuple[signal.Signals, float]]:
    rng = random.Random(4711)
    return [(signal.SIGINT if i % 2 else signal.SIGTERM, rng.uniform(0, seconds)) for i in range(count)]


@pytest.mark.slow
def test_a_sample_of_interrupts(place: Path, tmp_path: Path, usual: tuple[dict[str, str], float]) -> None:
    wanted, seconds = usual
    assert check(place, tmp_path / "here", wanted, signal.SIGTERM, seconds / 3)


@pytest.mark.slow
def test_many_interrupts(place: Path, tmp_path: Path, usual: tuple[dict[str, str], float]) -> None:
    wanted, seconds = usual
    result = [
        check(place, tmp_path / str(i), wanted, *one, planted="" if i % 5 == 0 else QUICK)
        for i, one in enumerate(times(TIMES, seconds))
    ]
    print(f"{sum(result)} of {len(result)} came before the end of the compile")
    assert sum(result) > TIMES / 2


# A library that is at work, and lets Python do nothing meanwhile.
BUSY = """
import hashlib
from ptqc.passes import analyze
analyze.measure = lambda *_: (print("busy", flush=True), hashlib.pbkdf2_hmac("sha256", b"", b"", 2 * 10**9))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_library_that_does_not_listen(place: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(place, tmp_path, BUSY)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    time.sleep(1)  # until it is at work
    process.send_signal(number)
    sent = time.monotonic()
    _, text = process.communicate(timeout=60)
    assert (process.returncode, text.count("\n")) == (128 + number, 1)
    assert 2 < time.monotonic() - sent <= SECONDS


@pytest.mark.slow
def test_what_is_left_would_be_found(place: Path, tmp_path: Path, usual: tuple[dict[str, str], float]) -> None:
    """A process that is killed leaves its temporary folder."""
    process = start(place, tmp_path, BUSY)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    process.kill()
    process.communicate()
    assert tree(tmp_path) != []
    with pytest.raises(AssertionError):
        check(place, tmp_path, usual[0], signal.SIGKILL, 0)
