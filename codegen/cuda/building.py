"""A job of the target cuda, once the stand-ins are loaded: the library, what is told of it, its verification."""

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda import package
from ptqc.codegen.cuda.emulator.building import build_kernels
from ptqc.codegen.cuda.emulator.ptx import NotEmulated
from ptqc.codegen.cuda.job_files import TARGET
from ptqc.codegen.cuda.layers import CUDA
from ptqc.codegen.cuda.loops import ThreadLoops
from ptqc.codegen.cuda.machine_code import KernelCode
from ptqc.codegen.cuda.toolkit import Image, Toolkit
from ptqc.codegen.kernels import documents, lowering
from ptqc.codegen.kernels.assignment import Assignment, write_document
from ptqc.codegen.kernels.job_files import REPORT
from ptqc.codegen.kernels.loops import written_with
from ptqc.codegen.kernels.package import module
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program
from ptqc.codegen.program.verify import Loaded
from ptqc.codegen.program.weights import Weights
from ptqc.native.cuda_library import CudaLibrary
from ptqc.native.interface import INTERFACE, KERNELS, WEIGHTS, library_file
from ptqc.native.runtime import PACKAGE
from ptqc.plan import write_json

EMULATED = "emulated"
# Products and sums of all runs that the emulator takes on, well within the time that a job may take.
MOST_OPERATIONS = 600_000_000


@dataclass(frozen=True)
class Delivered:
    """The library of a program in a folder, and the image of its kernels."""

    program: Program
    image: Image
    folder: Path

    def emulated(self) -> Loaded:
        """The library on the emulator, which finds the translation of its kernels by the image's bytes."""
        build_kernels(self.image.ptx, self.image.path.with_suffix(".so"))
        os.environ["PTQC_EMULATED_KERNELS"] = str(self.image.path.parent)
        return Loaded(Listing.of(self.program), CudaLibrary.open(self.folder, emulated=True))


def build(folder: Path) -> None:
    """Do a job. Raises TargetError and VerificationError."""
    given, toolkit = Assignment.read(folder), Toolkit.require()
    gpus = given.job["gpus"]
    with written_with(ThreadLoops()):
        program = lowering.program(given.lowered, given.seen, CUDA, given.batching)
        made = write(program, toolkit, gpus, folder)
    listings = {TARGET: Listing.of(program).to_json()}
    code = {"machine_code": _codes(made), "predicted_microseconds_of_a_sample": _predicted(program)}
    write_document(folder / KERNELS, {"libraries": listings, **given.job["kept"], **code})
    found = verified(made, given.batching.batch or 1)
    write_document(folder / REPORT, _report(made, toolkit) | {"verified": told(found), "verification": found})


def write(program: Program, toolkit: Toolkit, gpus: list[str], folder: Path) -> Delivered:
    """Write the library of a program with its weights and interface."""
    weights = Weights()
    room = folder / EMULATED
    room.mkdir()
    image = package.link(module(program, weights), toolkit, gpus, room, folder / library_file(TARGET))
    (folder / WEIGHTS).write_bytes(bytes(weights))
    build = {"isa": TARGET, "machine": "x86_64", "features": []}
    head = {"libraries": [build], "tvm": metadata.version(PACKAGE), "threads": 0, "gpus": gpus}
    (folder / INTERFACE).write_text(write_json({**head, **documents.interface(program)}), encoding="utf-8")
    return Delivered(program, image, folder)


def verified(made: Delivered, samples: int) -> dict[str, Any]:
    """Compare the library with what ONNX Runtime computed, in the emulator where that does not take too long.

    samples: in each run. Raises VerificationError.
    """
    operations = samples * len(documents.runs(made.folder)) * sum(step.built.operations for step in made.program.steps)
    if operations > MOST_OPERATIONS:
        return {
            "missing": f"the emulator would compute {operations / 1e6:,.0f} million operations, and takes on "
            f"{MOST_OPERATIONS / 1e6:.0f}"
        }
    try:
        library = made.emulated()
    except NotEmulated as reason:
        return {"missing": str(reason)}
    return {"on": "the emulator", **documents.verification(library, made.folder, _take_order)}


def told(found: Mapping[str, Any]) -> str:
    """What was verified, in words."""
    if "missing" in found:
        return f"NOT VERIFIED HERE: {found['missing']}"
    different = sum(found["end_to_end_different"].values())
    compared = f"{different:,} of {found['integers_compared']:,} integers differ from model.onnx"
    return f"{compared}, in the emulator of PTX; not run on a GPU"


def _take_order(number: int) -> None:
    """Let each run take the threads of a block in an order of its own, the first as they are numbered."""
    os.environ["PTQC_EMULATOR_ORDER"] = str(number)


def _codes(made: Delivered) -> dict[str, dict[str, Any]]:
    """By function of a kernel and by chip."""
    names = sorted({name for codes in made.image.codes.values() for name in codes})
    return {name: {gpu: asdict(codes[name]) for gpu, codes in made.image.codes.items()} for name in names}


def _predicted(program: Program) -> dict[str, Any]:
    """By kernel and chip: from the figures of chips, see `ptqc.codegen.cuda.costs`."""
    return {step.built.name: dict(step.built.predicted) for step in program.steps if step.built.predicted}


def _summary(codes: Collection[KernelCode]) -> dict[str, int]:
    """Of all kernels for one chip: the most registers of a thread, bytes of spills, instructions of tensor cores."""
    return {
        "registers": max((code.registers for code in codes), default=0),
        "spilled_bytes": sum(code.spilled_bytes for code in codes),
        "tensor_core_instructions": sum(code.tensor_core_instructions for code in codes),
    }


def _report(made: Delivered, toolkit: Toolkit) -> dict[str, Any]:
    return {
        "gpus": {gpu: _summary(codes.values()) for gpu, codes in made.image.codes.items()},
        "nvcc": toolkit.version,
        "ptx_sha256": hashlib.sha256(made.image.ptx.encode()).hexdigest(),
        **documents.figures(made.program),
    }
