"""One tiny library for all tests of native libraries at run time."""

import importlib.util
import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from compiling import one_at_a_time
from tiny_library import BUILD, python

from ptqc.runtime.library import Library
from ptqc.utils.machine import machine


@pytest.fixture(scope="session")
def folder(shared_room: Path) -> Path:
    """A folder like an artifact's cpu/, made once for all processes that test."""
    if sys.platform != "linux":
        pytest.skip("native libraries run on Linux only")
    if importlib.util.find_spec("tvm") is None or importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("needs apache-tvm to build a library: pip install 'ptqc[tvm]'")
    if shutil.which("g++") is None:
        pytest.skip("needs a linker to build a library: no g++ here")
    made = shared_room / "tiny_library"
    with one_at_a_time(made):
        if not made.exists():
            made.mkdir()
            _make(made)
    return made


def _make(made: Path) -> None:
    done = python(BUILD, str(made / "generic.so"))
    assert done.returncode == 0, done.stderr
    value = {"dtype": "float32", "shape": [None, 2, 3]}
    interface = {
        "libraries": [{"isa": "generic", "features": [], "machine": machine()}],
        "tvm": metadata.version("apache-tvm"),
        "inputs": [{"name": "x", **value}],
        "outputs": [{"name": "y", **value}],
        "threads": 0,
    }
    (made / "interface.json").write_text(json.dumps(interface))
    (made / "weights.bin").write_bytes(bytes(64))


@pytest.fixture(scope="session")
def library(folder: Path) -> Library:
    """The library, opened."""
    return Library.open(folder)
