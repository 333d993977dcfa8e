"""Libraries that were built before, found by their content: kernels, constants, calls, instruction set, tools."""

import hashlib
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.codegen.tvm import package
from ptqc.codegen.tvm.constants import Arranged, Scaled, Stored
from ptqc.codegen.tvm.isa import Isa
from ptqc.codegen.tvm.program import Program
from ptqc.native import LIBRARY, PACKAGE
from ptqc.store import Store


def link(program: Program, isa: Isa, path: Path, store: Store | None) -> None:
    """Write the library of a program, from the store where it was built before."""
    module = package.module(program)
    if store is None:
        package.link(module, isa, path)
        return
    key = _key(program, module, isa)
    entry = store.get(key)
    if entry is not None:
        shutil.copyfile(entry.folder / LIBRARY, path)
        return
    package.link(module, isa, path)

    def keep(folder: Path) -> None:
        shutil.copyfile(path, folder / LIBRARY)

    store.put(key, {}, {}, keep)


def _key(program: Program, module: Any, isa: Isa) -> dict[str, str]:
    """All that the bytes of a library depend on. Kernels are named by their content."""
    digest = hashlib.sha256()
    for name in ("prepare", "workspace", "main"):
        digest.update(module[name].script().encode())
    for step in program.steps:
        for constant in step.built.constants:
            _add(digest, constant)
    linker = package.linker(isa)
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "what": "native library",
        "program": digest.hexdigest(),
        "target": str(sorted(isa.target.items())),
        "tvm": metadata.version(PACKAGE),
        "linker": f"{linker} {version}",
        "threads": hashlib.sha256(package.THREADS.read_bytes()).hexdigest(),
    }


def _add(digest: Any, constant: Stored) -> None:
    match constant:
        case Scaled():
            digest.update(f"{constant.panels} panels".encode())
            _add(digest, constant.codes)
            _add(digest, constant.scale)
        case Arranged():  # their order is in the code of `prepare`
            _add(digest, constant.codes)
        case _:
            digest.update(f"{constant.dtype}{constant.shape}".encode())
            digest.update(constant.tobytes())
