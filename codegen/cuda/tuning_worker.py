"""The process that tunes: a job folder in, times of kernels out (`python -m ptqc.codegen.cuda.tuning_worker FOLDER`).

It compiles kernels, for which stand-ins for the driver are loaded before anything imports TVM; the GPU is another
process's. Files of a job: `lowered.onnx`, `job.json`. It writes `report.json`, or `error.json`.
"""

import sys
from pathlib import Path

from ptqc.codegen.cuda.emulator.opening import load_stand_ins


def _work(folder: Path) -> None:
    load_stand_ins()
    from ptqc.codegen.cuda.measuring import measured

    measured(folder)


if __name__ == "__main__":
    from ptqc.codegen.kernels.assignment import telling

    telling(_work, Path(sys.argv[1]))
