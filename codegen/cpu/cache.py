"""Libraries that were built before, found by their content: kernels, calls, instruction set, tools."""

import hashlib
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.codegen.cpu import package
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.package import module as module_of
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.weights import Weights
from ptqc.native.runtime import PACKAGE
from ptqc.store.entries import Store

LIBRARY = "library.so"


def link(program: Program, isa: Isa, path: Path, weights: Weights, store: Store | None) -> None:
    """Write the library of a program, from the store where it was built before; its constants go to `weights`."""
    module = module_of(program, weights)
    if store is None:
        package.link(module, isa, path)
        return
    key = _key(module, isa)
    entry = store.get(key)
    if entry is not None:
        shutil.copyfile(entry.folder / LIBRARY, path)
        return
    package.link(module, isa, path)

    def keep(folder: Path) -> None:
        shutil.copyfile(path, folder / LIBRARY)

    store.put(key, {}, {}, keep)


def _key(module: Any, isa: Isa) -> dict[str, str]:
    """All that the bytes of a library depend on. Kernels are named by their content."""
    digest = hashlib.sha256()
    for name in ("prepare", "workspace", "main"):
        digest.update(module[name].script().encode())
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
