"""Opening a library on the emulator, whose stand-ins are loaded already."""

import ctypes
import gzip
import os
import struct
from pathlib import Path

from ptqc.codegen.cuda.emulator.building import build_kernels, build_stand_ins, refusal
from ptqc.errors import TargetError
from ptqc.runtime.cuda_library import NAME, CudaLibrary
from ptqc.runtime.interface import library_file
from ptqc.utils.scratch import scratch

# The PTX that all machine code of a library was made of.
PTX = "kernels.ptx.gz"
# Head of an image: magic number, version, bytes of the head, bytes behind it.
MAGIC, HEAD = b"\x50\xed\x55\xba", struct.Struct("<4sHHQ")
ROOM, IMAGE = "emulated", "kernels.fatbin"
# What processes call before they import TVM, see `Work`.
STAND_INS = f"{__name__}:load_stand_ins"


def load_stand_ins() -> None:
    """Load stand-ins for the driver and the runtime. Raises TargetError where they cannot be built."""
    if reason := refusal():
        raise TargetError(reason)
    with scratch() as folder:
        for path in build_stand_ins(Path(folder)):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def open_image(folder: Path, image: Path, ptx: str) -> CudaLibrary:
    """The library in a folder; its image, which becomes known by what lies beside it. Raises NotEmulated."""
    build_kernels(ptx, image.with_suffix(".so"))
    os.environ["PTQC_EMULATED_KERNELS"] = str(image.parent)
    return CudaLibrary.open(folder, emulated=True)


def open_delivered(folder: Path, room: Path) -> CudaLibrary:
    """The library of an artifact. room: a folder to work in. Raises NotEmulated."""
    image = room / IMAGE
    image.write_bytes(image_of(folder / library_file(NAME)))
    return open_image(folder, image, read_ptx(folder))


def read_ptx(folder: Path) -> str:
    """The PTX of an artifact's library. Raises TargetError where it is not there."""
    try:
        return gzip.decompress((folder / PTX).read_bytes()).decode()
    except (OSError, EOFError, ValueError) as error:
        raise TargetError(f"{folder / PTX} does not hold the PTX of the library: {error}; compile again") from error


def image_of(library: Path) -> bytes:
    """The machine code and PTX that a library carries. Raises TargetError where there are none."""
    data = library.read_bytes()
    start = data.find(MAGIC)
    if start >= 0:
        _, _, head, size = HEAD.unpack_from(data, start)
        if start + head + size <= len(data):
            return data[start : start + head + size]
    raise TargetError(f"{library} carries no machine code for GPUs; compile again")
