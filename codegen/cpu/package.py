"""From a module to a library: compiled by LLVM, and linked with the threads that it runs on."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptqc.codegen.cpu.isa import KNOWN
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.linking import COMPILED, content_key, export, obtain
from ptqc.errors import TargetError
from ptqc.utils.machine import machine
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store

THREADS = Path(__file__).with_name("threads.cpp")
# What makes static libraries, beside the compiler.
BINUTILS = ("objcopy", "ar")


# What a library is called in the store.
LIBRARY = "library.so"


def write_library(module: Any, isa: Isa, path: Path, store: Store | None) -> None:
    """Write the library of a module, from the store where it was built before."""
    obtain(store, _key(module, isa), {LIBRARY: path}, lambda: link(module, isa, path))


def _key(module: Any, isa: Isa) -> dict[str, str]:
    return {
        "what": "native library",
        **content_key(module, linker(isa)),
        "target": str(sorted(isa.target.items())),
        "threads": hashlib.sha256(THREADS.read_bytes()).hexdigest(),
    }


def link(module: Any, isa: Isa, path: Path) -> None:
    """Compile a module and write the library."""
    import tvm

    built, compiler = tvm.relax.build(module, target=tvm.target.Target(isa.target)), linker(isa)
    with scratch() as folder:
        threads = Path(folder) / "threads.o"
        threads.write_bytes(_threads(compiler))
        # The threads outlive whoever closes the library.
        export(built, path, compiler, [str(threads), "-Wl,-z,nodelete"])


def headers() -> list[str]:
    """Flags by which a compiler finds the headers of TVM's runtime."""
    from tvm_ffi import libinfo

    return [f"-I{libinfo.find_include_path()}", f"-I{libinfo.find_dlpack_include_path()}"]


@lru_cache
def _threads(compiler: str) -> bytes:
    """The object file of a library's threads, the same for all libraries that a compiler links."""
    with scratch() as folder:
        result = Path(folder) / "threads.o"
        command = [compiler, *COMPILED, "-std=c++17", "-fno-exceptions", "-fvisibility=hidden", *headers()]
        subprocess.run([*command, "-c", str(THREADS), "-o", str(result)], check=True)
        return result.read_bytes()


def check_compiler() -> None:
    """Raises TargetError where no compiler for any instruction set is here, before anything is measured."""
    compilers = (
        [os.environ["CXX"]] if "CXX" in os.environ else sorted({_usual(isa) for isa in KNOWN.values() if isa.cpu})
    )
    if not any(map(shutil.which, compilers)):
        raise TargetError(
            f"the cpu target links with a C++ compiler ({' or '.join(compilers)}), and there is none here: install the "
            "package g++, or name a compiler in CXX"
        )


def check_binutils(sets: Iterable[Isa]) -> None:
    """Raises TargetError where no static library for these can be made, before anything is measured."""
    for isa in sets:
        for name in BINUTILS:
            if shutil.which(tool := binutil(linker(isa), name)) is None:
                raise TargetError(
                    f"a static library for {isa.machine} is made with {tool}, which is not here: install binutils for "
                    f"{isa.machine} (Debian: binutils-{isa.machine.replace('_', '-')}-linux-gnu)"
                )


def binutil(compiler: str, name: str) -> str:
    """The program of binutils, or of LLVM, that goes with a compiler."""
    command = [compiler, f"-print-prog-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _usual(isa: Isa) -> str:
    return "g++" if isa.machine == machine() else f"{isa.machine}-linux-gnu-g++"


def linker(isa: Isa) -> str:
    """The C++ compiler that links for an instruction set. Raises TargetError when it is absent."""
    compiler = os.environ.get("CXX", _usual(isa))
    if shutil.which(compiler) is None:
        raise TargetError(
            f"the cpu target links for {isa.machine} with {compiler}, which is not here: install it, or name a C++ "
            f"compiler for {isa.machine} in CXX"
        )
    return compiler
