"""TVM's runtime, loaded once: importing `tvm` would load a compiler of 259 MB."""

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ptqc.errors import TargetError

RUNTIME, RUNTIME_VARIABLE = "libtvm_runtime.so", "PTQC_TVM_RUNTIME"
PACKAGE, INSTALL = "apache-tvm", "pip install 'ptqc[tvm]'"


def check_version(tvm: str) -> None:
    """Refuse another version of TVM, whose interfaces change with every release. Raises TargetError.

    Whoever names a runtime in the environment answers for its version, which the file does not tell.
    """
    if os.environ.get(RUNTIME_VARIABLE):
        return
    with contextlib.suppress(metadata.PackageNotFoundError):  # told where the runtime is looked for
        result = metadata.version(PACKAGE)
        if result != tvm:
            raise TargetError(
                f"the native library was built with {PACKAGE} {tvm}, and {result} is installed: "
                f"pip install {PACKAGE}=={tvm}, or compile again"
            )


class _Hidden(MetaPathFinder):
    """Makes one module look absent to the thread that made this finder."""

    def __init__(self, name: str) -> None:
        self.name, self.thread = name, threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Refuse the module here and now; leave everything else to the other finders."""
        del path, target
        if name == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _import_ffi(install: str) -> Any:
    """The module tvm_ffi. Its import would load torch where that is installed, for seconds and without need."""
    hidden = _Hidden("torch")
    sys.meta_path.insert(0, hidden)
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise TargetError(f"running a native library needs tvm_ffi ({error}): {install}") from error
    finally:
        sys.meta_path.remove(hidden)


def runtime_path(install: str = INSTALL) -> Path:
    """Where libtvm_runtime.so is: as the environment says, or inside the installed package, which stays unimported.

    install: what to do where there is none. Raises TargetError then.
    """
    if named := os.environ.get(RUNTIME_VARIABLE):
        result = [Path(named)]
    else:
        spec = importlib.util.find_spec("tvm")
        result = [Path(folder) / "lib" / RUNTIME for folder in (spec and spec.submodule_search_locations) or ()]
    for path in result:
        if path.is_file():
            return path.resolve()
    looked = f"{result[0]} does not exist" if result else "the package apache-tvm is not installed"
    raise TargetError(
        f"running a native library needs TVM's runtime, and {looked}: {install}, or set {RUNTIME_VARIABLE} "
        f"to the path of {RUNTIME}"
    )


LOADING = threading.Lock()
# By SHA-256. TVM keeps what it loads for as long as the process lives, and more of it each time that it loads it again.
_MODULES: dict[str, Any] = {}


@cache
def load_runtime(install: str = INSTALL) -> Any:
    """Load TVM's runtime once; the module tvm_ffi. Raises TargetError when it is absent or of another version.

    install: what to do then.
    """
    path = runtime_path(install)
    ffi = _import_ffi(install)
    try:
        # The generated code finds its backend functions through this library, which must come first.
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise TargetError(f"{path} is not a TVM runtime that fits this version of ptqc ({error}): {install}") from error
    return ffi


def load_module(ffi: Any, path: Path) -> Any:
    """The library in a file, loaded once however often it is opened."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with LOADING:
        if digest not in _MODULES:
            _MODULES[digest] = ffi.load_module(str(path))
        return _MODULES[digest]
