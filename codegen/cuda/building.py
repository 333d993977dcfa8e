"""A job of the target cuda, once the stand-ins are loaded: the library, what is told of it, its verification."""

import gzip
import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda import package, tuning, verification
from ptqc.codegen.cuda.backend import CUDA
from ptqc.codegen.cuda.emulator.opening import PTX, ROOM, open_image
from ptqc.codegen.cuda.emulator.ptx import NotEmulated
from ptqc.codegen.cuda.isa import TARGET
from ptqc.codegen.cuda.machine_code import KernelCode
from ptqc.codegen.cuda.predictions import predicted
from ptqc.codegen.cuda.times_table import GpuTimes
from ptqc.codegen.cuda.toolkit import Image, Toolkit
from ptqc.codegen.kernels import documents, lowering
from ptqc.codegen.kernels.assignment import Assignment
from ptqc.codegen.kernels.package import module
from ptqc.codegen.kernels.process import write_document
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, Weights
from ptqc.codegen.program.verify import Loaded
from ptqc.ir.lowered import Lowered
from ptqc.ir.plan import write_json
from ptqc.runtime.interface import INTERFACE, KERNELS, TUNING, WEIGHTS, library_file
from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.store import Store


@dataclass(frozen=True)
class Delivered:
    """The library of a program in a folder, and the image of its kernels."""

    program: Program
    image: Image
    folder: Path

    def emulated(self) -> Loaded:
        """The library on the emulator, which finds the translation of its kernels by the image's bytes."""
        return Loaded(Listing.of(self.program).summed_exactly, open_image(self.folder, self.image.path, self.image.ptx))


def build(folder: Path) -> dict[str, Any]:
    """Build and verify the library of a job and report on it. Raises TargetError and VerificationError."""
    assignment, toolkit = Assignment.read(folder), Toolkit.require()
    gpus, store = assignment.job["gpus"], Store(Path(assignment.job["store"])) if assignment.job["store"] else None
    program = program_of(assignment)
    times = GpuTimes.from_json(assignment.job["times"]) if assignment.job["times"] else None
    if times is not None:
        times = tuning.selected(program, times)
        program = tuning.tuned(program, times)
        write_document(folder / TUNING, times.to_json())
    library = write(program, toolkit, gpus, folder, store)
    listings = {TARGET: Listing.of(program).to_json()}
    code = {"machine_code": _codes(library), "predicted_microseconds_of_a_sample": _predicted(program)}
    write_document(folder / KERNELS, {"libraries": listings, **assignment.job["kept"], **code})
    result = verified(library, assignment.batching.batch or 1)
    report = _report(library, assignment.lowered, toolkit) | (times.report if times is not None else {})
    return report | {"verified": verification.summary(result), "verification": result}


def program_of(inputs: Assignment) -> Program:
    """The kernels of a job's network, in the variants that are predicted to be fastest."""
    return lowering.program(inputs.lowered, inputs.seen, CUDA, inputs.batching)


def write(
    program: Program,
    toolkit: Toolkit,
    gpus: list[str],
    folder: Path,
    store: Store | None = None,
) -> Delivered:
    """Write the library of a program with its weights and interface."""
    weights = Weights()
    room = folder / ROOM
    room.mkdir()
    image = package.write_library(
        module(program, weights, CUDA.loops), toolkit, gpus, room, folder / library_file(TARGET), store
    )
    (folder / WEIGHTS).write_bytes(bytes(weights))
    (folder / PTX).write_bytes(gzip.compress(image.ptx.encode(), mtime=0))
    build = {"isa": TARGET, "machine": "x86_64", "features": []}
    head = {"libraries": [build], "tvm": metadata.version(PACKAGE), "threads": 0, "gpus": gpus}
    (folder / INTERFACE).write_text(write_json({**head, **documents.interface(program)}), encoding="utf-8")
    return Delivered(program, image, folder)


def verified(delivered: Delivered, samples: int) -> dict[str, Any]:
    """Compare the library with what ONNX Runtime computed, in the emulator where that knows all instructions.

    samples: in each run. Raises VerificationError.
    """
    try:
        library = delivered.emulated()
    except NotEmulated as reason:
        return {"missing": str(reason)}
    return verification.verification(library, delivered.folder, samples, delivered.image.ptx)


def _codes(library: Delivered) -> dict[str, dict[str, Any]]:
    names = sorted({name for codes in library.image.codes.values() for name in codes})
    return {name: {gpu: asdict(codes[name]) for gpu, codes in library.image.codes.items()} for name in names}


def _predicted(program: Program) -> dict[str, Any]:
    """By kernel and chip."""
    return {step.kernel.name: result for step, result in zip(program.steps, predicted(program), strict=True)}


def _summary(codes: Collection[KernelCode]) -> dict[str, int]:
    """Of all kernels for one chip: the most registers of a thread, bytes of spills, instructions of tensor cores."""
    return {
        "registers": max((code.registers for code in codes), default=0),
        "spilled_bytes": sum(code.spilled_bytes for code in codes),
        "tensor_core_instructions": sum(code.tensor_core_instructions for code in codes),
    }


def _report(library: Delivered, lowered: Lowered, toolkit: Toolkit) -> dict[str, Any]:
    return {
        "gpus": {gpu: _summary(codes.values()) for gpu, codes in library.image.codes.items()},
        "nvcc": toolkit.version,
        "ptx_sha256": hashlib.sha256(library.image.ptx.encode()).hexdigest(),
        **documents.figures(library.program, lowered),
    }
