"""What the emulator verifies of a library: of a small network everything, of a large one each kernel.

A large network's kernels are compared on one sample and two edge inputs; of a kernel that takes long only some blocks
run (`codegen/program/partial.py`), spread over all of its output, other ones in each run.
"""

import ctypes
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda.emulator.opening import ROOM, STAND_INS, open_delivered, read_ptx
from ptqc.codegen.cuda.emulator.ptx import NotEmulated, modules
from ptqc.codegen.kernels import documents
from ptqc.codegen.kernels.process import JOB, VALUES, Work
from ptqc.codegen.program.emulated import Emulated
from ptqc.codegen.program.inputs import EDGES
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.partial import Cropping, PartialRun
from ptqc.codegen.program.verify import Compared, Loaded, TensorComparison, Values, outcomes
from ptqc.errors import TargetError, VerificationError
from ptqc.execution.onnxruntime import Feeds
from ptqc.runtime.cuda_library import NAME
from ptqc.runtime.interface import KERNELS
from ptqc.utils.scratch import scratch
from ptqc.utils.store import write_npz
from ptqc.utils.text import differences_end_to_end

# Products and sums: of all runs of a network that runs whole, and of one call of a kernel of a larger one.
MOST_OPERATIONS, MOST_OF_CALL = 700_000_000, 200_000_000
# What a large network runs on, beside its first sample: these edge inputs first.
PREFERRED, EDGES_TAKEN = ("random", "highest", "lowest", "zero"), 2
# Variables that the stand-in driver reads before it launches a kernel.
ORDER, SHARE, CHIP = "PTQC_EMULATOR_ORDER", "PTQC_EMULATOR_SHARE", "PTQC_EMULATOR_CHIP"


def verification(loaded: Loaded, folder: Path, samples: int, ptx: str) -> dict[str, Any]:
    """Compare a library on the emulator with what ONNX Runtime computed. Raises VerificationError.

    folder: of the job. samples: in each run. ptx: of the library, which has kernels for one architecture or several.
    """
    results = {chip: _verification(loaded, folder, samples) for chip in each_chip(ptx)}
    most = max(results.values(), key=lambda one: sum(one.get("end_to_end_different", {}).values()))
    return most if len(results) == 1 else {**most, "architectures": list(results)}


def each_chip(ptx: str) -> Iterator[str]:
    """Let kernels be those for each architecture that there is PTX for, one after the other; its name."""
    for architecture in modules(ptx):
        os.environ[CHIP] = f"sm_{architecture}"
        yield os.environ[CHIP]
    os.environ.pop(CHIP, None)


def _verification(loaded: Loaded, folder: Path, samples: int) -> dict[str, Any]:
    runs = documents.runs(folder)
    if is_small(loaded.listing, samples * len(runs)):
        return {"on": "the emulator", **documents.verification(loaded, folder, take_order)}
    return {"on": "the emulator", **_kernel_by_kernel(loaded, runs)}


def is_small(listing: Listing, samples: int) -> bool:
    """Whether the emulator takes on so many samples of the whole network."""
    return samples * sum(call.operations for call in listing.calls) <= MOST_OPERATIONS


def _kernel_by_kernel(loaded: Loaded, runs: Mapping[str, Path]) -> dict[str, Any]:
    compared, shares, taken = Compared(), dict[str, float](), list(_taken(runs))
    for number, path in enumerate(taken):
        take_order(number)
        with np.load(path) as values:
            run = PartialRun(loaded, CROPPING)
            for outcome in run.outcomes(dict(values)):
                if outcome.problem:
                    raise VerificationError(f"the native library differs from the ONNX file at {outcome.problem}")
                compared.add(outcome)
        shares |= run.shares
    return {
        "runs": len(taken),
        "kernels_compared": compared.kernels,
        "integers_compared": compared.integers,
        "reals_compared": compared.reals,
        "cropped": shares,
    }


def _taken(runs: Mapping[str, Path]) -> Iterator[Path]:
    """One sample and a few edge inputs."""
    yield from (path for name, path in list(runs.items())[:1] if name not in EDGES)
    yield from [runs[name] for name in PREFERRED if name in runs][:EDGES_TAKEN]


def summary(result: Mapping[str, Any]) -> str:
    """What was verified, in words."""
    if "missing" in result:
        return f"NOT VERIFIED HERE: {result['missing']}"
    if "cropped" not in result:
        different, rounded = (sum(result[key].values()) for key in ("end_to_end_different", "end_to_end_rounded"))
        after = f"; {differences_end_to_end(different, rounded)}" if different else ""
        return f"0 of {result['integers_compared']:,} integers differ from model.onnx{after}{_where(result)}"
    cropped = f"; of {len(result['cropped'])} large ones a part" if result["cropped"] else ""
    return (
        f"0 of {result['integers_compared']:,} integers differ from model.onnx, kernel by kernel on one sample of each "
        f"of {result['runs']} runs{cropped}{_where(result)}"
    )


def _where(result: Mapping[str, Any]) -> str:
    chips = f" for {' and for '.join(result['architectures'])}" if "architectures" in result else ""
    return f", in the emulator of PTX{chips}; not run on a GPU"


def take_order(number: int) -> None:
    """Let kernels from now on take the threads of a block in an order of its own; 0: as they are numbered."""
    os.environ[ORDER] = str(number)


def _crop(share: float) -> None:
    os.environ[SHARE] = str(share)


def _left_out() -> int:
    """The stand-in driver tells."""
    ask = ctypes.CDLL(None).ptqc_left_out
    ask.restype = ctypes.c_uint64
    return int(ask())


CROPPING = Cropping(MOST_OF_CALL, _crop, _left_out)


# A delivered library compared in the emulator, in a process of its own, which alone loads the stand-ins.

COMPARE = Work("ptqc.codegen.cuda.verification:compare", before=STAND_INS)
OUTPUTS = "outputs-{:03}.npz"


def emulate(folder: Path, listing: Listing, runs: Iterable[Values]) -> Emulated:
    """Compare the library in a folder with what ONNX Runtime computed in some runs. Raises TargetError."""
    with scratch() as temporary:
        job, count = Path(temporary), 0
        for values in runs:
            write_npz(job / VALUES.format(count), values)
            count += 1
        (job / JOB).write_text(json.dumps({"library": str(folder.resolve()), "runs": count}))
        report, problem = COMPARE.attempt(job)
        if problem:
            raise TargetError(f"the emulator of CUDA kernels {problem}; compare the library on a GPU")
        paths = [job / OUTPUTS.format(index) for index in range(count)]
        outputs = [_read(path) for path in paths if path.is_file()]
    calls = {call.output: call for call in listing.calls}
    results = [
        [TensorComparison(**{**each, "call": calls[each["call"]]}) for each in run] for run in report["outcomes"]
    ]
    return Emulated(results, outputs, report["cropped"])


def compare(job: Path) -> dict[str, Any]:
    """Compare a delivered library on the values of a job; also writes outputs where whole runs do not take too long."""
    document = json.loads((job / JOB).read_text())
    folder, room = Path(document["library"]), job / ROOM
    room.mkdir()
    listing = Listing.from_json(json.loads((folder / KERNELS).read_text())["libraries"][NAME])
    try:
        loaded = Loaded(listing.summed_exactly, open_delivered(folder, room))
    except NotEmulated as reason:
        raise TargetError(f"{reason}; compare it on a GPU") from reason
    shares: dict[str, float] = {}
    is_whole = is_small(listing, sum(_samples(job, index, loaded) for index in range(document["runs"])))
    by_chip = [
        [_compared(job, index, loaded, is_whole, shares) for index in range(document["runs"])]
        for _ in each_chip(read_ptx(folder))
    ]
    results = [[max(same, key=_wrong) for same in zip(*runs, strict=True)] for runs in zip(*by_chip, strict=True)]
    return {"outcomes": results, "cropped": shares}


def _samples(job: Path, index: int, loaded: Loaded) -> int:
    with np.load(job / VALUES.format(index)) as archive:
        return loaded.samples(archive)


def _compared(job: Path, index: int, loaded: Loaded, is_whole: bool, shares: dict[str, float]) -> list[dict[str, Any]]:
    take_order(index)
    with np.load(job / VALUES.format(index)) as archive:
        values = dict(archive)
    if is_whole:
        return _whole(job, index, loaded, values)
    run = PartialRun(loaded, CROPPING)
    message = [_document(outcome) for outcome in run.outcomes(values)]
    shares |= run.shares
    return message


def _wrong(outcome: Mapping[str, Any]) -> tuple[int, int]:
    """How much of a tensor differs."""
    return outcome["wrong"], outcome["chained"]


def _whole(job: Path, index: int, loaded: Loaded, values: Values) -> list[dict[str, Any]]:
    message = [_document(outcome) for outcome in outcomes(loaded, values, {})]
    write_npz(job / OUTPUTS.format(index), loaded.library.run({name: values[name] for name in loaded.listing.inputs}))
    return message


def _document(outcome: TensorComparison) -> dict[str, Any]:
    document = asdict(outcome)
    return document | {"call": outcome.call.output}


def check(folder: Path, document: Mapping[str, Any]) -> None:
    """Raises VerificationError where the PTX is not what the machine code was made of. document: of the manifest."""
    result = hashlib.sha256(read_ptx(folder).encode()).hexdigest()
    if result != document["ptx_sha256"]:
        raise VerificationError(f"the PTX in {folder} is not what the manifest says: its SHA-256 is {result}")


def _read(path: Path) -> Feeds:
    with np.load(path) as archive:
        return dict(archive)
