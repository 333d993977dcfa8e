"""Libraries for another machine: compiled here, linked where there is a linker, never called verified."""

import json
import shutil
import stat
import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from networks import FEEDS, residual

from ptqc.codegen.cpu import isa, package, target
from ptqc.errors import TargetError
from ptqc.utils.machine import machine

MACHINE_AARCH64 = 183  # ELF's e_machine
LINKER = """#!/bin/sh
# Stands for a compiler and linker: makes empty objects, and copies that with the kernels to where the library goes.
while [ $# -gt 0 ]; do
    case "$1" in -o) shift; out=$1 ;; lib0.o) object=$1 ;; --version) echo 1; exit ;; esac
    shift
done
cp "${object:-/dev/null}" "$out"
"""

pytestmark = pytest.mark.skipif(machine() == "aarch64", reason="is about compiling for another machine")


def test_an_object_for_the_machine_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linker = tmp_path / "linker"
    linker.write_text(LINKER)
    linker.chmod(linker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(linker))
    made, file = residual()
    built = target.build(made.lowered, file, FEEDS, tmp_path, "aarch64")
    library = built.files["aarch64.so"].read_bytes()
    assert library[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", library, 18) == (MACHINE_AARCH64,)
    assert json.loads(built.files["interface.json"].read_text())["libraries"] == [
        {"isa": "aarch64", "machine": "aarch64", "features": ["asimd"]}
    ]
    assert "is for Linux on aarch64" in built.document["libraries"][0]["verification"]["missing"]


def test_an_absent_linker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    if shutil.which("aarch64-linux-gnu-g++"):
        pytest.skip("is about a linker that is not here")
    with pytest.raises(TargetError, match=r"links for aarch64 with aarch64-linux-gnu-g\+\+, which is not here"):
        package.linker(isa.AARCH64)


def test_no_product_of_bytes_overflows() -> None:
    """What `isa._neon` relies on: a code times any int8 weight fits in 16 bits."""
    products = np.arange(256)[:, None] * np.arange(-128, 128)[None]
    assert np.iinfo(np.int16).min <= products.min() <= products.max() <= np.iinfo(np.int16).max
