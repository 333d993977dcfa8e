"""From a module to a library: TVM writes CUDA C++, nvcc compiles it, and what launches kernels is linked around it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda.isa import target
from ptqc.codegen.cuda.toolkit import Image, Toolkit
from ptqc.codegen.kernels.linking import export
from ptqc.errors import InternalError

# Code that launches kernels asks for no more than every such processor has.
HOST = {"kind": "llvm", "mcpu": "x86-64", "mtriple": "x86_64-linux-gnu"}
CALLBACK = "tvm_callback_cuda_compile"


def link(module: Any, toolkit: Toolkit, gpus: Sequence[str], room: Path, path: Path) -> Image:
    """Compile a module and write the library. room: a folder for the image and what it is made of."""
    import tvm
    import tvm_ffi

    images: list[Image] = []

    def compile_cuda(source: str, _target: Any = None) -> bytes:
        name = hashlib.sha256(source.encode()).hexdigest()[:16]
        images.append(toolkit.compile(source, gpus, room, name))
        return images[-1].path.read_bytes()

    tvm_ffi.register_global_func(CALLBACK, compile_cuda, override=True)
    chosen = tvm.target.Target(target(HOST))
    with chosen:
        built = tvm.relax.build(module, target=chosen, relax_pipeline="default_build")
    if len(images) != 1:
        raise InternalError(f"TVM compiled {len(images)} modules of CUDA kernels; expected one")
    export(built, path)
    return images[0]
