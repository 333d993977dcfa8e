"""Many networks in one CUDA library, each compared with ONNX Runtime in the emulator: a process of its own.

`python emulated_networks.py codes|few|float|float8|layers|more|stages|randomN FOLDER`: stand-ins for the driver have
to be loaded before TVM is.
"""

import os
import sys
from pathlib import Path


def main(kind: str, folder: Path) -> None:
    """Print what differs, and how much was compared."""
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()
    import json

    from gpu_networks import built, programs_of
    from together import compared

    from ptqc.codegen.cuda.isa import BY_ELEMENT

    os.environ["PTQC_EMULATOR_ORDER"] = "7"
    result = compared(programs_of(kind, folder), BY_ELEMENT, folder, built)
    print(json.dumps({"wrong": result.wrong, "integers": result.compared.integers, "reals": result.compared.reals}))


if __name__ == "__main__":
    tests = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(tests), str(tests / "codegen" / "cpu")]
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    main(sys.argv[1], Path(sys.argv[2]))
