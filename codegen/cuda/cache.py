"""Libraries that were built before, found by their content, with the images of their kernels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda import package, toolkit
from ptqc.codegen.cuda.isa import target
from ptqc.codegen.cuda.machine_code import KernelCode
from ptqc.codegen.cuda.toolkit import Image, Toolkit
from ptqc.codegen.kernels.built_before import content_key, obtain
from ptqc.codegen.kernels.linking import usual_compiler
from ptqc.utils.store import Store

LIBRARY, IMAGE, TEXT, REPORT = "library.so", "kernels.fatbin", "kernels.ptx", "machine_code.json"


def link(module: Any, tools: Toolkit, gpus: Sequence[str], room: Path, path: Path, store: Store | None) -> Image:
    """Write the library of a module, from the store where it was built before. room: a folder for its image."""
    image, text, report = room / IMAGE, room / TEXT, room / REPORT

    def build() -> None:
        output = package.link(module, tools, gpus, room, path)
        output.path.rename(image)
        text.write_text(output.ptx, encoding="utf-8")
        report.write_text(json.dumps(_document(output.codes)))

    obtain(store, _key(module, tools, gpus), {LIBRARY: path, IMAGE: image, TEXT: text, REPORT: report}, build)
    codes = {
        gpu: {name: KernelCode(**code) for name, code in result.items()}
        for gpu, result in json.loads(report.read_text()).items()
    }
    return Image(image, text.read_text(encoding="utf-8"), codes)


def _document(codes: Mapping[str, Mapping[str, KernelCode]]) -> dict[str, dict[str, dict[str, int]]]:
    return {gpu: {name: asdict(code) for name, code in result.items()} for gpu, result in codes.items()}


def _key(module: Any, tools: Toolkit, gpus: Sequence[str]) -> dict[str, str]:
    """All that the bytes of a library and of its image depend on."""
    return {
        "what": "CUDA library",
        **content_key(module, usual_compiler()),
        "target": str(target(package.HOST)),
        "nvcc": tools.version,
        "flags": str((toolkit.VIRTUAL, toolkit.ASKED, toolkit.EXACT, toolkit.ASSEMBLED)),
        "gpus": ",".join(gpus),
    }
