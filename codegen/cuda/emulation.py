"""A delivered library compared in the emulator, in a process of its own, which alone loads the stand-ins."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda.emulator.opening import read_ptx
from ptqc.codegen.kernels.job_files import JOB, REPORT, VALUES
from ptqc.codegen.kernels.jobs import attempt
from ptqc.codegen.program.emulated import Emulated
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.verify import TensorComparison, Values
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.utils.scratch import scratch
from ptqc.utils.store.npz import write_npz

WORKER, OUTPUTS = "ptqc.codegen.cuda.emulation_worker", "outputs-{:03}.npz"


def emulate(folder: Path, listing: Listing, runs: Iterable[Values]) -> Emulated:
    """Compare the library in a folder with what ONNX Runtime computed in some runs. Raises TargetError."""
    with scratch() as temporary:
        job, count = Path(temporary), 0
        for values in runs:
            write_npz(job / VALUES.format(count), values)
            count += 1
        (job / JOB).write_text(json.dumps({"library": str(folder.resolve()), "runs": count}))
        if problem := attempt(job, WORKER):
            raise TargetError(f"the emulator of CUDA kernels {problem}; compare the library on a GPU")
        report = json.loads((job / REPORT).read_text())
        paths = [job / OUTPUTS.format(index) for index in range(count)]
        outputs = [_read(path) for path in paths if path.is_file()]
    calls = {call.output: call for call in listing.calls}
    found = [[TensorComparison(**{**each, "call": calls[each["call"]]}) for each in run] for run in report["outcomes"]]
    return Emulated(found, outputs, report["cropped"])


def check(folder: Path, document: Mapping[str, Any]) -> None:
    """Raises VerificationError where the PTX is not what the machine code was made of. document: of the manifest."""
    found = hashlib.sha256(read_ptx(folder).encode()).hexdigest()
    if found != document["ptx_sha256"]:
        raise VerificationError(f"the PTX in {folder} is not what the manifest says: its SHA-256 is {found}")


def _read(path: Path) -> Feeds:
    with np.load(path) as archive:
        return dict(archive)
