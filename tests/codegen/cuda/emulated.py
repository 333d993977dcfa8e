"""Kernels written in PTX, run by the emulator without any driver."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ptqc.codegen.cuda.emulator import building

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
COUNTED = "    .reg .pred %p<9>;\n    .reg .b16 %h<17>;\n    .reg .b32 %r<33>;\n    .reg .b64 %q<17>;\n"


class Launch(ctypes.Structure):
    """`emulator::Launch`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("share", ctypes.c_double),
        ("left_out", ctypes.POINTER(ctypes.c_uint64)),
        ("digits", ctypes.c_int),
    )


def kernel(name: str, body: str, pointers: int = 1) -> str:
    """A kernel that has its pointers in %q0, %q1 … and its thread in %r0."""
    parameters = ",\n".join(f"    .param .u64 p{i}" for i in range(pointers))
    loads = "\n".join(f"    ld.param.u64 %q{i}, [p{i}];" for i in range(pointers))
    head = f".visible .entry {name}(\n{parameters}\n)\n{{\n{COUNTED}{loads}\n    mov.u32 %r0, %tid.x;\n"
    return f"{head}{body}\n    ret;\n}}\n"


class Emulated:
    """The kernels of a module of PTX. left_out: bytes that blocks which did not run last time could have stored."""

    left_out = 0

    def __init__(self, ptx: Sequence[str], folder: Path) -> None:
        library = folder / "kernels.so"
        self.names = building.build_kernels(HEAD + "\n".join(ptx), library)
        self._library = ctypes.CDLL(str(library))

    def __call__(
        self,
        name: str,
        *arrays: np.ndarray,
        threads: int = 32,
        blocks: int = 1,
        dynamic: int = 0,
        order: int = 0,
        share: float = 1.0,
        digits: int = 0,
    ) -> str:
        """Run a kernel on arrays, in place; what was wrong, or nothing."""
        pointers = [ctypes.c_uint64(array.ctypes.data) for array in arrays]
        arguments = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
        launch = self._library[f"launch_{name}"]
        launch.restype = ctypes.c_char_p
        left_out = ctypes.c_uint64()
        value = Launch(
            (blocks, 1, 1), (threads, 1, 1), dynamic, order, arguments, share, ctypes.pointer(left_out), digits
        )
        problem = launch(ctypes.byref(value))
        self.left_out = left_out.value
        return problem.decode() if problem else ""


def aligned(array: np.ndarray) -> np.ndarray:
    """The array where a GPU would have it: at a multiple of 256 bytes."""
    room = np.empty(array.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
