"""Libraries whose bytes depend on nothing but what is in them: linked, or found where the same was built before."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.errors import TargetError
from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.store import Store

# How C++ is compiled, and how it is linked.
COMPILED = ("-fPIC", "-O2", "-ffp-contract=off")
FLAGS = ("-shared", *COMPILED, "-Wl,--build-id=none", "-s")


def export(built: Any, path: Path, compiler: str | None = None, more: Sequence[str] = ()) -> None:
    """Write a module that TVM built. compiler: that links. more: sources and flags."""
    command = [compiler or usual_compiler(), *FLAGS, *more]

    def join(output: str, objects: Sequence[str], options: Sequence[str] | None = None, **_: Any) -> None:
        """Link with nothing in the file that depends on folders or times."""
        folder = Path(objects[0]).parent
        relative = [os.path.relpath(name, folder) for name in objects]
        done = [*command, *(options or ()), "-o", str(Path(output).resolve()), *relative]
        subprocess.run(done, cwd=folder, check=True)

    built.export_library(str(path), fcompile=join)


def usual_compiler() -> str:
    """The C++ compiler of this machine. Raises TargetError when it is absent."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise TargetError(f"libraries are linked with {compiler}, which is not here: install it, or name one in CXX")
    return compiler


def obtain(store: Store | None, key: Mapping[str, str], files: Mapping[str, Path], build: Callable[[], None]) -> None:
    """Let files be there: from the store where the same was built before, else as `build` writes them.

    files: where to, by their names in the store.
    """
    entry = store.get(key) if store is not None else None
    if entry is not None:
        for name, path in files.items():
            shutil.copyfile(entry.folder / name, path)
        return
    build()

    def keep(folder: Path) -> None:
        for name, path in files.items():
            shutil.copyfile(path, folder / name)

    if store is not None:
        store.put(key, {}, {}, keep)


def content_key(module: Any, linker: str) -> dict[str, str]:
    """All that the bytes of a library depend on, but for what is the target's own. Kernels are named by their content.

    linker: the program that links it.
    """
    digest = hashlib.sha256()
    for name in ("prepare", "workspace", "main"):
        digest.update(module[name].script().encode())
    return {"program": digest.hexdigest(), **built_by(linker)}


def built_by(linker: str) -> dict[str, str]:
    """The programs that a library is built by. linker: the one that links it."""
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=True).stdout
    return {"tvm": metadata.version(PACKAGE), "linker": f"{linker} {version}"}
