"""Native libraries for Arm on other machines: run through QEMU, so that they are verified where they are built.

What it takes: `qemu-aarch64` (Debian: qemu-user), a cross compiler, and TVM's wheels for aarch64, of which the two
libraries are taken that a deployed library needs as well.
"""

import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ptqc.codegen.cpu.package import headers, linker
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.linking import obtain
from ptqc.errors import TargetError
from ptqc.runtime.interface import INTERFACE, WEIGHTS, Interface, library_file
from ptqc.utils.scratch import Scratch
from ptqc.utils.store import Store

WHEELS_VARIABLE = "PTQC_AARCH64_WHEELS"
EMULATOR = "qemu-aarch64"
# Runs programs that find the libraries of the cross compiler, on a processor that has every instruction.
COMMAND = (EMULATOR, "-cpu", "max", "-L", "/usr/aarch64-linux-gnu")
RUNNER = Path(__file__).with_name("runner.cpp")
LIBRARIES = {"libtvm_runtime.so": "apache_tvm-*.whl", "libtvm_ffi.so": "apache_tvm_ffi-*.whl"}
# DLPack's codes of types, by NumPy's kinds.
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
TYPES = {code: kind for kind, code in CODES.items()}


def missing(isa: Isa) -> str | None:
    """What is not here of what emulation takes, in words; None where all is."""
    if isa.machine != "aarch64" or sys.byteorder != "little":
        return f"nothing emulates {isa.machine}"
    if shutil.which(EMULATOR) is None:
        return f"{EMULATOR} is not installed"
    folder = os.environ.get(WHEELS_VARIABLE)
    if not folder:
        return f"{WHEELS_VARIABLE} does not name a folder with TVM's wheels for aarch64"
    absent = [pattern for pattern in LIBRARIES.values() if not list(Path(folder).glob(pattern))]
    return f"{folder} has no {absent[0]}" if absent else None


@dataclass(frozen=True)
class EmulatedConstant:
    """A constant of the emulated library, by its number."""

    number: int


class EmulatedLibrary:
    """A library at work in an emulator; see `ptqc.codegen.program.verify.Runnable`. Close it."""

    def __init__(self, command: Sequence[str], interface: Interface, scratch: Scratch) -> None:
        self._interface, self._scratch = interface, scratch  # whose folder goes with it
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._check()
        self.constants = [EmulatedConstant(number) for number in range(self._number("<i"))]

    @classmethod
    def open(cls, folder: Path, isa: Isa, store: Store | None) -> Self:
        """Open the library of an instruction set, where nothing is `missing`. store: keeps the program that runs it."""
        scratch = Scratch()
        _unpack(Path(os.environ[WHEELS_VARIABLE]), scratch.folder)
        program = scratch.folder / "runner"
        compiler = linker(isa)
        key = {"what": "runner", "source": RUNNER.read_text(), "compiler": compiler}
        obtain(store, key, {program.name: program}, lambda: _compile(compiler, scratch.folder, program))
        program.chmod(0o755)
        paths = [str(folder / name) for name in (library_file(isa.name), WEIGHTS)]
        settings = ["-E", f"LD_LIBRARY_PATH={scratch.folder}", "-E", "TVM_NUM_THREADS=1"]
        return cls([*COMMAND, *settings, str(program), *paths], Interface.read(folder / INTERFACE), scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of what was not read any more
                    pipe.close()

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name."""
        inputs = [feeds[value.name] for value in self._interface.inputs]
        self._send(b"R", struct.pack("<i", len(inputs)), *map(_tensor, inputs))
        outputs = [self._array() for _ in range(self._number("<i"))]
        return {value.name: array for value, array in zip(self._interface.outputs, outputs, strict=True)}

    def kernel(self, name: str) -> Callable[..., object]:
        """One kernel."""
        return lambda *buffers: self.prepared(name, *buffers)()

    def prepared(self, name: str, *buffers: Any) -> Callable[[], object]:
        """A call of one kernel."""
        return lambda: self._call(name, buffers)

    def _call(self, name: str, buffers: Sequence[Any]) -> None:
        *_, output = (buffer for buffer in buffers if isinstance(buffer, np.ndarray))
        text = name.encode()
        self._send(b"K", struct.pack("<i", len(text)), text, struct.pack("<i", len(buffers)), *map(_argument, buffers))
        output[...] = np.frombuffer(self._read(output.nbytes), output.dtype).reshape(output.shape)

    def _send(self, *parts: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it said last is read below
            for part in parts:
                self._process.stdin.write(part)
            self._process.stdin.flush()
        self._check()

    def _check(self) -> None:
        """Raises TargetError where it failed."""
        if self._read(1) != b"\0":
            message = self._read(self._number("<i")).decode(errors="replace")
            raise TargetError(f"the native library failed in {EMULATOR}: {message}")

    def _array(self) -> np.ndarray:
        code, bits, axes = struct.unpack("<BBi", self._read(6))
        shape = struct.unpack(f"<{axes}q", self._read(8 * axes))
        dtype = np.dtype(f"{TYPES[code]}{bits // 8}")
        count = int(np.prod(shape))
        return np.frombuffer(self._read(count * dtype.itemsize), dtype).reshape(shape)

    def _number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._read(struct.calcsize(form)))
        return int(number)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            code = self._process.wait()
            raise TargetError(f"the native library ended in {EMULATOR} with {code}")
        return data


def _argument(buffer: Any) -> bytes:
    if isinstance(buffer, np.ndarray):
        return b"t" + _tensor(buffer)
    if isinstance(buffer, EmulatedConstant):
        return b"c" + struct.pack("<i", buffer.number)
    return b"i" + struct.pack("<q", buffer)


def _tensor(array: np.ndarray) -> bytes:
    head = struct.pack("<BBi", CODES[array.dtype.kind], array.itemsize * 8, array.ndim)
    return head + struct.pack(f"<{array.ndim}q", *array.shape) + array.tobytes()


def _unpack(wheels: Path, folder: Path) -> None:
    """Write the libraries of TVM's runtime into a folder."""
    for library, pattern in LIBRARIES.items():
        with zipfile.ZipFile(max(wheels.glob(pattern))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(f"/{library}"))
            (folder / library).write_bytes(wheel.read(member))


def _compile(compiler: str, folder: Path, program: Path) -> None:
    linked = [f"-L{folder}", f"-Wl,-rpath-link,{folder}", "-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]
    command = [compiler, "-std=c++17", "-O1", *headers(), str(RUNNER), "-o", str(program), *linked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"{compiler} does not compile the program for {EMULATOR}: {done.stderr[-400:]}")
