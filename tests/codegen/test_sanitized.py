"""Kernels of every family under address and undefined-behaviour sanitizers, and a fault that these must find."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sanitized.py")

pytestmark = [
    pytest.mark.skipif(find_spec("tvm") is None, reason="needs apache-tvm: pip install 'ptqc[tvm]'"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ with its sanitizers"),
]


def python(what: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), what, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    done = python("build", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def preload() -> dict[str, str]:
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = runtime.stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip("g++ has no address sanitizer here")
    return {"LD_PRELOAD": path, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}


@pytest.fixture(scope="module")
def ran(built: Path, preload: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """All kernels on buffers of their sizes, and then on outputs that are too small."""
    return python("run", built, **preload)


@pytest.mark.slow
def test_no_kernel_is_reported(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.stdout.startswith("all kernels ran\n"), ran.stderr[-2000:]
    assert ran.returncode == 0
    assert ran.stderr.count("ERROR: AddressSanitizer") == 1  # of what is forked behind
    assert "runtime error" not in ran.stderr


@pytest.mark.slow
def test_an_output_that_is_too_small_is_reported(ran: subprocess.CompletedProcess[str]) -> None:
    text = ran.stdout.splitlines()[-1]
    assert text.startswith("with too small outputs: ")
    assert not text.endswith(": 0")
    assert "heap-buffer-overflow" in ran.stderr
