"""Building what runs kernels on this machine: their translation, and the stand-ins for the driver and the runtime."""

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ptqc.codegen.cuda.emulator.translation import translated
from ptqc.errors import InternalError

HERE = Path(__file__).parent
DRIVER, RUNTIME = "libcuda.so.1", "libcudart.so.13"
STRICT = ("-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# Arithmetic as PTX has it: nothing contracted, integers wrap.
EXACT = ("-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", f"-I{HERE}")


def refusal() -> str | None:
    """Why kernels cannot be run without a GPU on this machine, if they cannot."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return f"the emulator of CUDA kernels runs on Linux on x86_64, and this is {system} on {machine}"
    if shutil.which(compiler()) is None:
        message = f"the emulator of CUDA kernels needs a C++ compiler, and {compiler()} is not here"
        return f"{message}: install it, or name one in CXX"
    return None


def compiler() -> str:
    """The C++ compiler."""
    return os.environ.get("CXX", "g++")


def build_stand_ins(folder: Path) -> list[Path]:
    """Write libraries that stand in for the driver and the runtime; in the order in which they are to be loaded."""
    versions = folder / "versions"
    versions.write_text(f"{RUNTIME} {{ global: cuda*; }};", encoding="utf-8")
    driver, runtime = folder / DRIVER, folder / RUNTIME
    _compile([*EXACT, f"-Wl,-soname,{DRIVER}", str(HERE / "driver.cpp")], driver)
    _compile(["-O1", f"-Wl,-soname,{RUNTIME},--version-script={versions}", str(HERE / "runtime.cpp")], runtime)
    return [driver, runtime]


def build_kernels(ptx: str, library: Path) -> list[str]:
    """Write the library of a module's kernels; their names. Raises NotEmulated for PTX that is not understood."""
    text, names = translated(ptx)
    source = library.with_suffix(".cpp")
    source.write_text(text, encoding="utf-8")
    _compile([*EXACT, *_fast(), str(source)], library)
    return names


@cache
def _fast() -> tuple[str, ...]:
    """Instructions for products and sums rounded once, where this machine has them."""
    from ptqc.utils.machine import processor_features

    return ("-mavx2", "-mfma", "-mf16c") if {"avx2", "fma", "f16c"} <= processor_features() else ()


def _compile(arguments: list[str], output: Path) -> None:
    command = [compiler(), *STRICT, *arguments, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"{' '.join(command)} failed: {done.stderr[:2000]}")
