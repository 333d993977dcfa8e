"""The process that builds a CUDA library: a job folder in, a verified library out.

`python -m ptqc.codegen.cuda.worker FOLDER`. TVM compiles for CUDA only where the driver's library loads: before
anything imports TVM, stand-ins are loaded, on which the kernels then run without a GPU.
"""

import ctypes
import sys
from pathlib import Path

from ptqc.codegen.cuda.emulator.building import build_stand_ins, refusal
from ptqc.errors import TargetError
from ptqc.work.scratch import scratch


def load_stand_ins() -> None:
    """Load stand-ins for the driver and the runtime. Raises TargetError where they cannot be built."""
    if told := refusal():
        raise TargetError(f"{told}; compile the cuda target elsewhere")
    with scratch() as folder:
        for path in build_stand_ins(Path(folder)):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def _work(folder: Path) -> None:
    load_stand_ins()
    from ptqc.codegen.cuda.building import build

    build(folder)


if __name__ == "__main__":
    from ptqc.codegen.kernels.assignment import telling

    telling(_work, Path(sys.argv[1]))
