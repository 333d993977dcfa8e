"""The process that times libraries: a job folder in, times out (`python -m ptqc.codegen.cpu.timing_worker FOLDER`).

Files of a job: `job.json`, the inputs `values-000.npz`, and a folder for each program, whose library is built there. It
writes `report.json`, or `error.json`.
"""

import json
import sys
from pathlib import Path

import numpy as np

from ptqc.codegen.cpu import tuning
from ptqc.codegen.cpu.worker import CpuOrder, write
from ptqc.codegen.kernels.assignment import telling
from ptqc.codegen.kernels.job_files import JOB, REPORT, VALUES
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.timing import time_libraries
from ptqc.codegen.program.verify import Loaded
from ptqc.ir.plan import write_json
from ptqc.runtime.library import Library


def _work(folder: Path) -> None:
    job = json.loads((folder / JOB).read_text())
    libraries = [_built(folder / name) for name in job["programs"]]
    with np.load(folder / VALUES.format(0)) as values:
        feeds = dict(values)
    result = time_libraries(libraries, feeds, job["seconds"])
    (folder / REPORT).write_text(write_json({"programs": [program.to_json() for program in result]}), encoding="utf-8")


def _built(folder: Path) -> Loaded:
    """The library of a program, with one thread."""
    order = CpuOrder.read(folder)
    ((chosen, program),) = order.programs().items()
    request = order.request
    if request.level is not None:
        table = tuning.measure(program, chosen, request.level, order.store)
    else:
        table = request.tables.get(chosen.name, {})
    program = tuning.tuned(program, table)
    write(program, chosen, folder, order.store)
    return Loaded(Listing.of(program), Library.open(folder, threads=1))


if __name__ == "__main__":
    telling(_work, Path(sys.argv[1]))
