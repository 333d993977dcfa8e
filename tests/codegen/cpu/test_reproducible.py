"""The same network gives the same bytes, whatever process and folder it is compiled in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from networks import FEEDS, residual

from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.cpu.target import BUILD
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.program.batching import Batching


@pytest.mark.slow
def test_two_builds_are_equal(tmp_path: Path) -> None:
    made, file = residual()
    first = tmp_path / "first"
    first.mkdir()
    write_job(first, made.lowered, file, FEEDS, Choices(Batching(2), "avx2,avx512-vnni", static="net"))
    second = shutil.copytree(first, tmp_path / "a folder with a longer name")
    for seed, folder in enumerate((first, second)):
        command = [sys.executable, "-m", "ptqc.codegen.kernels.process", BUILD.function, str(folder)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True)
    archive = ("libnet-x86_64.a", "net.h")
    for name in ("avx2.so", "avx512-vnni.so", *archive, "weights.bin", "interface.json", "report.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
