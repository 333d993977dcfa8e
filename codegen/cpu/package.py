"""From a module to a library: compiled by LLVM, and linked with the threads that it runs on."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptqc.codegen.kernels.isa import Isa
from ptqc.errors import TargetError
from ptqc.native.machine import machine

THREADS = Path(__file__).with_name("threads.cpp")


def link(module: Any, isa: Isa, path: Path) -> None:
    """Compile a module and write the library."""
    import tvm

    command = [linker(isa), "-shared", "-fPIC", "-O2", "-ffp-contract=off", "-Wl,--build-id=none", "-s", *_threads()]

    def join(output: str, objects: Sequence[str], options: Sequence[str] | None = None, **_: Any) -> None:
        """Link with nothing in the file that depends on folders or times."""
        folder = Path(objects[0]).parent
        relative = [os.path.relpath(name, folder) for name in objects]
        done = [*command, *(options or ()), "-o", str(Path(output).resolve()), *relative]
        subprocess.run(done, cwd=folder, check=True)

    tvm.relax.build(module, target=tvm.target.Target(isa.target)).export_library(str(path), fcompile=join)


def _threads() -> list[str]:
    """What compiles and links the library's threads, which outlive whoever closes the library."""
    from tvm_ffi import libinfo

    headers = f"-I{libinfo.find_include_path()}", f"-I{libinfo.find_dlpack_include_path()}"
    return [str(THREADS), *headers, "-std=c++17", "-fno-exceptions", "-fvisibility=hidden", "-Wl,-z,nodelete"]


def linker(isa: Isa) -> str:
    """The C++ compiler that links for an instruction set. Raises TargetError when it is absent."""
    usual = "g++" if isa.machine == machine() else f"{isa.machine}-linux-gnu-g++"
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise TargetError(
            f"the cpu target links for {isa.machine} with {compiler}, which is not here: install it, or name a C++ "
            f"compiler for {isa.machine} in CXX"
        )
    return compiler
