"""An instruction set like that of AMX whose tile instructions are functions, for processors that have none."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import present

from ptqc.codegen.cpu import isa
from ptqc.codegen.kernels.isa import TileInstructions
from ptqc.runtime.library import Library

SOURCE = Path(__file__).with_suffix(".cpp")
FUNCTIONS = {"llvm.x86.tdpbusd": "soft_multiply", "llvm.x86.tdpbf16ps": "soft_multiply_bfloat16"}
SOFT = replace(
    isa.AMX_INT8,
    name="amx-soft",
    features=isa.AVX512_BF16.features,
    attributes=isa.AVX512_BF16.attributes,
    tiles=tuple(replace(tile, name=FUNCTIONS.get(tile.name, tile.name)) for tile in isa.AMX_INT8.tiles),
    tile_registers=TileInstructions("soft_configure", "soft_release", "soft_load", "soft_store", registers=8),
)
needs_soft_tiles = pytest.mark.skipif(
    SOFT not in present(SOFT) or shutil.which("g++") is None, reason="needs AVX-512 with bfloat16, and g++"
)


@cache
def functions() -> ctypes.CDLL:
    """The instructions, loaded where libraries find them."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "soft_tiles.so"
        options = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["g++", *options, str(SOURCE), "-o", str(library)], check=True)
        result = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    result.soft_faults.restype = result.soft_products.restype = ctypes.c_int64
    result.soft_allow.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    return result


@contextmanager
def soft_tiles(load: int = 0) -> Iterator[None]:
    """Let kernels use the functions, none of which may find a fault. load: one that gives a wrong tile."""
    functions().soft_reset(load)
    yield
    assert first_fault() == ""
    assert functions().soft_products() > 0


def first_fault() -> str:
    """What the first fault was, if there was one."""
    text = ctypes.create_string_buffer(100)
    functions().soft_first_fault(text, len(text))
    return text.value.decode()


def kernel_in_bounds(library: Library, name: str, slack: int = 0) -> Callable[..., None]:
    """In place of `Library.kernel`: tiles are loaded from what the kernel is given and from nothing else.

    slack: bytes at the end of the input that are not to be read either.
    """

    def call(*buffers: Any) -> None:
        for place, buffer in enumerate(buffers):
            if isinstance(buffer, int):  # a length
                continue
            array = buffer if isinstance(buffer, np.ndarray) else np.from_dlpack(buffer)
            functions().soft_allow(array.ctypes.data, array.nbytes - (0 if place else slack))
        library.prepared(name, *buffers)()
        functions().soft_allow_everything()

    return call
