"""Libraries that were built before, found by their content."""

import hashlib
from pathlib import Path
from typing import Any

from ptqc.codegen.cpu import package
from ptqc.codegen.kernels.built_before import content_key, obtain
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.package import module as module_of
from ptqc.codegen.kernels.writing import PROCESSOR
from ptqc.codegen.program.program import Program, Weights
from ptqc.utils.store import Store

LIBRARY = "library.so"


def link(program: Program, isa: Isa, path: Path, weights: Weights, store: Store | None) -> None:
    """Write the library of a program, from the store where it was built before; its constants go to `weights`."""
    module = module_of(program, weights, PROCESSOR)
    obtain(store, _key(module, isa), {LIBRARY: path}, lambda: package.link(module, isa, path))


def _key(module: Any, isa: Isa) -> dict[str, str]:
    """All that the bytes of a library depend on."""
    return {
        "what": "native library",
        **content_key(module, package.linker(isa)),
        "target": str(sorted(isa.target.items())),
        "threads": hashlib.sha256(package.THREADS.read_bytes()).hexdigest(),
    }
