"""examples/microcontroller: one `make` for this machine and for an emulated board; differing outputs are noticed."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from boards import needs_boards
from compiling import compiled_once, residual, samples
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
NAME = "tiny"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture(scope="module")
def artifact(shared_room: Path) -> Path:
    """A residual network in C, whose input has its channels last."""
    folder = shared_room / "microcontroller"
    return compiled_once(residual(), samples(3, 8, 8), folder, "60%", target="c", c_name=NAME).folder


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example, where it is built."""
    return shutil.copytree(ROOT / "examples" / "microcontroller", tmp_path / "example")


def make(example: Path, artifact: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "-s", f"ARTIFACT={artifact}", f"NAME={NAME}", f"PYTHON={sys.executable}", *targets]
    return subprocess.run(command, cwd=example, capture_output=True, text=True, check=False, timeout=120)


def expected(artifact: Path) -> str:
    best = int(load_file(artifact / "golden.safetensors")["0.output.y"].argmax())
    return f"class {best}, 0 outputs differ\n"


def changed(artifact: Path, folder: Path) -> Path:
    """An artifact of which one golden output is another one."""
    shutil.copytree(artifact, folder)
    golden = {name: np.array(array) for name, array in load_file(folder / "golden.safetensors").items()}
    golden["0.output.y"][0, 0] += 0.5 * np.abs(golden["0.output.y"]).max()
    save_file(golden, folder / "golden.safetensors")
    return folder


@pytest.mark.long
def test_on_this_machine(example: Path, artifact: Path) -> None:
    done = make(example, artifact)
    assert (done.returncode, done.stderr) == (0, "")
    ran = subprocess.run([example / "build" / NAME / "host"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, expected(artifact))


def test_frames_are_refused(example: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"{NAME}.h").write_text(f"int ptqc_{NAME}_push(const uint8_t *in_x, float *out_y);\n")
    save_file({}, tmp_path / "golden.safetensors")
    command = [sys.executable, "sample.py", str(tmp_path), NAME, str(tmp_path / "sample.h")]
    done = subprocess.run(command, cwd=example, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "without --c-stream" in done.stderr


@pytest.mark.long
def test_differing_outputs_are_counted(example: Path, artifact: Path, tmp_path: Path) -> None:
    assert make(example, changed(artifact, tmp_path / "changed")).returncode == 0
    ran = subprocess.run([example / "build" / NAME / "host"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout.endswith(", 1 outputs differ\n")


@needs_boards
@pytest.mark.parametrize("options", [(), ("CORE=-mcpu=cortex-m3", "MACHINE=mps2-an385")], ids=["m4", "m3"])
def test_on_a_board(options: tuple[str, ...], example: Path, artifact: Path) -> None:
    done = make(example, artifact, "run", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(expected(artifact))


@needs_boards
def test_a_board_ends_with_the_status_of_the_program(example: Path, artifact: Path, tmp_path: Path) -> None:
    done = make(example, changed(artifact, tmp_path / "changed"), "run")
    assert done.returncode != 0
    assert done.stdout.endswith(", 1 outputs differ\n")
