"""The process that predicts times: a job folder in, times out (`python -m ptqc.codegen.cuda.timing_worker FOLDER`).

Files of a job: `job.json`, and a folder for each program. It writes `report.json`, or `error.json`.
"""

import json
import sys
from pathlib import Path

from ptqc.codegen.cuda.building import program_of
from ptqc.codegen.cuda.predictions import predicted
from ptqc.codegen.kernels.assignment import Assignment, telling, write_document
from ptqc.codegen.kernels.job_files import JOB, REPORT
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.timing import TimedProgram

NANOSECONDS = 1e3


def _work(folder: Path) -> None:
    names = json.loads((folder / JOB).read_text())["programs"]
    found = [_timed(Assignment.read(folder / name)) for name in names]
    write_document(folder / REPORT, {"programs": [program.to_json() for program in found]})


def _timed(given: Assignment) -> TimedProgram:
    """The longest time of each call on the chips of the job."""
    program = program_of(given)
    times = [NANOSECONDS * max(step[gpu] for gpu in given.job["gpus"]) for step in predicted(program)]
    return TimedProgram.of(Listing.of(program), sum(times), times)


if __name__ == "__main__":
    telling(_work, Path(sys.argv[1]))
