"""The threads of native libraries under many callers at once, also watched by a sanitizer for races."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi.libinfo", reason="native libraries need tvm_ffi")
package = pytest.importorskip("ptqc.codegen.cpu.package")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="native libraries run on Linux only"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]
PROGRAM = Path(__file__).with_name("threads.cpp")


def build(folder: Path, *options: str) -> Path:
    program = folder / "program"
    values = "-std=c++17", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f'-DTHREADS="{package.THREADS}"'
    command = ["g++", *values, *package.headers(), *options, str(PROGRAM), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "-fsanitize" in " ".join(options) and "cannot find" in done.stderr:
        pytest.skip("g++ has no thread sanitizer here")
    assert done.returncode == 0, done.stderr
    return program


def test_every_task_of_every_loop_runs_once(tmp_path: Path) -> None:
    done = subprocess.run([build(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_two_threads_race(tmp_path: Path) -> None:
    program = build(tmp_path, "-fsanitize=thread", "-g")
    done = subprocess.run([program, "no fork"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
