"""kill −9 in front of every change of a file: nothing half is visible, and the next compile gives the same bytes."""

import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from compiling import digests, proto, weight

import ptqc
from ptqc.utils.store import Store, clear, contents

PROGRAM = Path(__file__).with_name("killed.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = "g (float[N,8] x) => (float[N,8] y) { h = Gemm(x, w) r = Relu(h) y = Gemm(r, v) }"
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(proto(graph, w=weight(8, 8), v=weight(8, 8, seed=1)), path)
    return path


def run(number: int, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(PROGRAM),
        str(number),
        str(model),
        str(folder / "work" / "out"),
        str(folder / "cache"),
    ]
    (folder / "work").mkdir(exist_ok=True, parents=True)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], int]:
    """The files of a compile that nothing stopped, and how many changes of files it made."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(0, model, folder)
    assert done.returncode == 0, done.stderr
    return digests(folder / "work" / "out"), int(done.stdout.splitlines()[-1])


def check(number: int, model: Path, folder: Path, wanted: dict[str, str]) -> None:
    killed = run(number, model, folder)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    out = folder / "work" / "out"
    if out.exists():  # only ever whole
        assert digests(ptqc.load(out).folder) == wanted
    resumed = run(0, model, folder)
    assert resumed.returncode == 0, resumed.stderr
    assert digests(out) == wanted
    assert [path.name for path in (folder / "work").iterdir()] == ["out"]
    store = Store(folder / "cache")
    clear(store)
    assert contents(store).bytes == 0


@pytest.mark.long
def test_a_sample_of_kills(model: Path, undisturbed: tuple[dict[str, str], int], tmp_path: Path) -> None:
    wanted, changes = undisturbed
    assert changes > 10
    check(changes // 2, model, tmp_path / "killed", wanted)


@pytest.mark.slow
def test_every_kill(model: Path, undisturbed: tuple[dict[str, str], int], tmp_path: Path) -> None:
    wanted, changes = undisturbed
    for number in range(1, changes + 1):
        check(number, model, tmp_path / str(number), wanted)


@pytest.mark.slow
def test_a_difference_would_be_found(model: Path, undisturbed: tuple[dict[str, str], int], tmp_path: Path) -> None:
    wanted, changes = undisturbed
    other = {**wanted, "model.onnx": wanted["model.onnx"][:-1]}
    with pytest.raises(AssertionError):
        check(changes // 2, model, tmp_path, other)
