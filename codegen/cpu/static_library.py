"""Static libraries: one archive for each kind of machine, which chooses among its instruction sets, and a C header."""

import hashlib
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ptqc.codegen.cpu.backend import CpuBackend
from ptqc.codegen.cpu.c_source import FEATURES, CInterface, CProgram, header, source
from ptqc.codegen.cpu.package import THREADS, binutil, linker
from ptqc.codegen.cpu.static_check import Run, compare
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.linking import built_by, obtain
from ptqc.codegen.program.program import Program, Weights
from ptqc.errors import TargetError
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store

# Position-independent, and without what only GNU's libraries have.
FLAGS = ("-O2", "-fPIC", "-ffp-contract=off", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-DPTQC_STATIC_LIBRARY")
FLAGS_OF = {"aarch64": ("-mno-outline-atomics",)}
C_FLAGS = ("-x", "c", "-std=c99", "-Wall", "-Wextra")
CPP_FLAGS = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-gnu-unique")
# The one pool of threads of a program, whatever the number of libraries in it: the namespace of threads.cpp.
POOL = "_ZN11ptqc_pool_1"


def archive_name(name: str, machine: str) -> str:
    """The file of a library for a kind of machine."""
    return f"lib{name}-{machine}.a"


def header_name(name: str) -> str:
    """The file of its header."""
    return f"{name}.h"


def check(sets: Iterable[Isa]) -> None:
    """Raises TargetError where no static library can choose among instruction sets, before anything is built."""
    for isa in sets:
        if unknown := sorted({*isa.features} - FEATURES.keys()):
            raise TargetError(f"a static library cannot tell whether a processor has {', '.join(unknown)} ({isa.name})")


@dataclass(frozen=True)
class Archive:
    """The library for one kind of machine. machine: as the system names it. sets: its instruction sets."""

    interface: CInterface
    machine: str
    path: Path
    sets: tuple[Isa, ...]

    def compare(self, chosen: Isa, expected: Sequence[Run]) -> dict[str, Any]:
        """Run it for one of its instruction sets, where that can be done, and the shared library was verified."""
        if not expected:
            return {"missing": f"the shared library for {chosen.name} was not verified"}
        return compare(self.interface, self.path, chosen, expected)


def write_archives(
    name: str, programs: Mapping[Isa, Program], weights: Weights, folder: Path, store: Store | None
) -> list[Archive]:
    """Write archives and header. weights: have all constants already."""
    interface, data = CInterface.of(name, next(iter(programs.values()))), bytes(weights)
    declared = header(interface, data)
    (folder / header_name(name)).write_text(declared, encoding="utf-8")
    results = []
    for machine in dict.fromkeys(isa.machine for isa in programs):
        own = {isa: program for isa, program in programs.items() if isa.machine == machine}
        c_programs = [CProgram(isa, program, weights, CpuBackend(isa).loops) for isa, program in own.items()]
        build = _Build(interface, c_programs, declared, source(interface, c_programs, data, zlib.crc32(data)))
        path = folder / archive_name(name, machine)
        obtain(store, build.key, {"library.a": path}, partial(build, path))
        results.append(Archive(interface, machine, path, tuple(own)))
    return results


@dataclass(frozen=True)
class _Build:
    """Builds the archive for one kind of machine. header, code: texts of the header and of the file in C."""

    interface: CInterface
    programs: Sequence[CProgram]
    header: str
    code: str

    @property
    def key(self) -> dict[str, str]:
        """All that the bytes of an archive depend on. Kernels are named by their content."""
        digest = hashlib.sha256(THREADS.read_bytes() + self.header.encode() + self.code.encode())
        targets = str([sorted(program.isa.target.items()) for program in self.programs])
        built = built_by(linker(self.programs[0].isa))
        return {"what": "static library", "source": digest.hexdigest(), "target": targets, **built}

    def __call__(self, path: Path) -> None:
        with scratch() as temporary:
            folder = Path(temporary)
            (folder / header_name(self.interface.name)).write_text(self.header, encoding="utf-8")
            (folder / "library.c").write_text(self.code, encoding="utf-8")
            for program in self.programs:
                _compile_kernels(program, folder / _part(program.isa.name))
            self._link(folder)
            shutil.copyfile(folder / "library.a", path)

    def _link(self, folder: Path) -> None:
        """Join all to one object that defines the functions of the header alone."""
        isa = self.programs[0].isa
        compiler, flags = linker(isa), (*FLAGS, *FLAGS_OF.get(isa.machine, ()))

        run = partial(_run, folder)
        run(compiler, *flags, *C_FLAGS, "-c", "library.c", "-o", _part("c"))
        run(compiler, *flags, *CPP_FLAGS, "-c", str(THREADS), "-o", _part("threads"))
        kernels = [_part(program.isa.name) for program in self.programs]
        name = f"{self.interface.name}.o"
        run(compiler, "-r", "-nostdlib", "-o", name, _part("c"), _part("threads"), *kernels)
        exported = [f"--keep-global-symbol={function}" for function in (*self.interface.functions, f"{POOL}*")]
        run(
            binutil(compiler, "objcopy"), "--strip-unneeded", "--remove-section=.comment", "--wildcard", *exported, name
        )
        run(binutil(compiler, "ar"), "rcsD", "library.a", name)


def _part(name: str) -> str:
    """An object that is joined with others: of no name that a library can have."""
    return f"part-{name}.o"


def _compile_kernels(program: CProgram, path: Path) -> None:
    import tvm

    functions = {name: kernel.function for name, kernel in program.functions.items()}
    built = tvm.tirx.build(tvm.IRModule(functions), target=tvm.target.Target(program.isa.target))
    built.write_to_file(str(path))


def _run(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TargetError(f"a static library is made with {command[0]}, which does not run: {error}") from error
    if done.returncode:
        raise TargetError(f"{command[0]} does not build the static library: {done.stderr[-400:]}")
