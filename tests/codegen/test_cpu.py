"""Runs the tests in `cpu/`, which load the TVM compiler, in a process of their own, as it may crash beside others."""

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
    # The process may crash when it ends, after all tests have passed: pytest's own last line decides.
    last = done.stdout.strip().splitlines()[-1]
    assert " passed" in last, done.stdout[-4000:]
    assert "failed" not in last, done.stdout[-4000:]
    assert "error" not in last, done.stdout[-4000:]
