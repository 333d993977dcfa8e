"""One tiny library for all tests of native libraries at run time."""

import importlib.util
import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tiny_library import BUILD, python

from ptqc.runtime.library import Library
from ptqc.utils.machine import machine


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like an artifact's cpu/."""
    if sys.platform != "linux":
        pytest.skip("native libraries run on Linux only")
    if importlib.util.find_spec("tvm") is None or importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("needs apache-tvm to build a library: pip install 'ptqc[tvm]'")
    if shutil.which("g++") is None:
        pytest.skip("needs a linker to build a library: no g++ here")
    made = tmp_path_factory.mktemp("cpu")
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
    return made


@pytest.fixture(scope="session")
def library(folder: Path) -> Library:
    """The library, opened."""
    return Library.open(folder)
