"""Linking a built module to a library whose bytes depend on nothing but what is in it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptqc.errors import TargetError

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
