"""From a module to a library: TVM writes CUDA C++, nvcc compiles it, and what launches kernels is linked around it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda import toolkit
from ptqc.codegen.cuda.isa import target
from ptqc.codegen.cuda.machine_code import KernelCode
from ptqc.codegen.cuda.toolkit import Image, Toolkit
from ptqc.codegen.kernels.linking import content_key, export, obtain, usual_compiler
from ptqc.errors import InternalError
from ptqc.utils.store import Store

# Code that launches kernels asks for no more than every such processor has.
HOST = {"kind": "llvm", "mcpu": "x86-64", "mtriple": "x86_64-linux-gnu"}
CALLBACK = "tvm_callback_cuda_compile"
LIBRARY, IMAGE, TEXT, REPORT = "library.so", "kernels.fatbin", "kernels.ptx", "machine_code.json"


def write_library(
    module: Any, tools: Toolkit, gpus: Sequence[str], room: Path, path: Path, store: Store | None
) -> Image:
    """Write the library of a module, from the store where it was built before. room: a folder for its image."""
    image, text, report = room / IMAGE, room / TEXT, room / REPORT

    def build() -> None:
        output = link(module, tools, gpus, room, path)
        output.path.rename(image)
        text.write_text(output.ptx, encoding="utf-8")
        report.write_text(json.dumps(_document(output.codes)))

    obtain(store, _key(module, tools, gpus), {LIBRARY: path, IMAGE: image, TEXT: text, REPORT: report}, build)
    codes = {
        gpu: {name: KernelCode(**code) for name, code in codes_of_gpu.items()}
        for gpu, codes_of_gpu in json.loads(report.read_text()).items()
    }
    return Image(image, text.read_text(encoding="utf-8"), codes)


def _document(codes: Mapping[str, Mapping[str, KernelCode]]) -> dict[str, dict[str, dict[str, int]]]:
    return {gpu: {name: asdict(code) for name, code in codes_of_gpu.items()} for gpu, codes_of_gpu in codes.items()}


def _key(module: Any, tools: Toolkit, gpus: Sequence[str]) -> dict[str, str]:
    return {
        "what": "CUDA library",
        **content_key(module, usual_compiler()),
        "target": str(target(HOST)),
        "nvcc": tools.version,
        "flags": str((toolkit.VIRTUAL, toolkit.ASKED, toolkit.EXACT, toolkit.ASSEMBLED)),
        "gpus": ",".join(gpus),
    }


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
