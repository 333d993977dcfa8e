"""The process that tells times: a job folder in, times out (`python -m ptqc.codegen.cuda.timing_worker FOLDER`).

Files of a job: `job.json`, and a folder for each program. Times are predicted, or where the job names a GPU, measured
there by another process: then kernels are compiled, for which stand-ins for the driver are loaded before anything
imports TVM. It writes `report.json`, or `error.json`.
"""

import json
import sys
from pathlib import Path

from ptqc.codegen.cuda.emulator.opening import load_stand_ins
from ptqc.codegen.kernels.job_files import JOB, REPORT


def _work(folder: Path) -> None:
    folders = [folder / name for name in json.loads((folder / JOB).read_text())["programs"]]
    if json.loads((folders[0] / JOB).read_text())["device"]:
        load_stand_ins()
    from ptqc.codegen.cuda.times import timed
    from ptqc.codegen.kernels.assignment import write_document

    write_document(folder / REPORT, {"programs": [timed(each).to_json() for each in folders]})


if __name__ == "__main__":
    from ptqc.codegen.kernels.assignment import telling

    telling(_work, Path(sys.argv[1]))
