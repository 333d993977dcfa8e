"""Runs the tests in `cpu/`, which load the TVM compiler, in a process of their own, as a fault there may end it."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("tvm") is None, reason="needs apache-tvm: pip install 'ptqc[tvm]'")
def test_the_cpu_target() -> None:
    folder = Path(__file__).with_name("cpu")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
