"""The process that compares a delivered library in the emulator: `python -m ptqc.codegen.cuda.emulation_worker FOLDER`.

Files of a job: `job.json` and `values-<i>.npz`, as `verification.py` writes them. It writes `report.json`, and
`outputs-<i>.npz` where whole runs do not take too long; or `error.json`.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda.emulator.opening import ROOM, load_stand_ins, open_delivered, read_ptx
from ptqc.codegen.cuda.emulator.ptx import NotEmulated
from ptqc.codegen.cuda.verification import CROPPING, OUTPUTS, each_chip, is_small, take_order
from ptqc.codegen.kernels.assignment import telling, write_document
from ptqc.codegen.kernels.job_files import JOB, REPORT, VALUES
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.partial import PartialRun
from ptqc.codegen.program.verify import Loaded, TensorComparison, Values, outcomes
from ptqc.errors import TargetError
from ptqc.runtime.cuda_library import NAME
from ptqc.runtime.interface import KERNELS
from ptqc.utils.store import write_npz


def _work(job: Path) -> None:
    load_stand_ins()
    operand = json.loads((job / JOB).read_text())
    folder, room = Path(operand["library"]), job / ROOM
    room.mkdir()
    listing = Listing.from_json(json.loads((folder / KERNELS).read_text())["libraries"][NAME])
    try:
        loaded = Loaded(listing.summed_exactly, open_delivered(folder, room))
    except NotEmulated as reason:
        raise TargetError(f"{reason}; compare it on a GPU") from reason
    shares: dict[str, float] = {}
    is_whole = is_small(listing, sum(_samples(job, index, loaded) for index in range(operand["runs"])))
    by_chip = [
        [_compared(job, index, loaded, is_whole, shares) for index in range(operand["runs"])]
        for _ in each_chip(read_ptx(folder))
    ]
    results = [[max(same, key=_wrong) for same in zip(*runs, strict=True)] for runs in zip(*by_chip, strict=True)]
    write_document(job / REPORT, {"outcomes": results, "cropped": shares})


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


if __name__ == "__main__":
    telling(_work, Path(sys.argv[1]))
