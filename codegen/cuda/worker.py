"""The process that builds a CUDA library: a job folder in, a verified library out.

`python -m ptqc.codegen.cuda.worker FOLDER`. TVM compiles for CUDA only where the driver's library loads: before
anything imports TVM, stand-ins are loaded, on which the kernels then run without a GPU.
"""

import sys
from pathlib import Path

from ptqc.codegen.cuda.emulator.opening import load_stand_ins


def _work(folder: Path) -> None:
    load_stand_ins()
    from ptqc.codegen.cuda.building import build

    build(folder)


if __name__ == "__main__":
    from ptqc.codegen.kernels.assignment import telling

    telling(_work, Path(sys.argv[1]))
