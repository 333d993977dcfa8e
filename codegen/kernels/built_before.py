"""What was built before, found by its content: kernels, calls, target, tools."""

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.store import Store


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
    version = subprocess.run([linker, "--version"], capture_output=True, text=True, check=True).stdout
    return {"program": digest.hexdigest(), "tvm": metadata.version(PACKAGE), "linker": f"{linker} {version}"}
