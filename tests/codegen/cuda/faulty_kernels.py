"""Builds a library whose PTX rounds down; prints what the verification says of it. A process of its own."""

import sys
from pathlib import Path


def main(folder: Path) -> None:
    """The fault lies in what the emulator is given, as a wrong kernel would be."""
    from ptqc.codegen.cuda.worker import load_stand_ins

    load_stand_ins()
    from networks import FEEDS, residual

    from ptqc.codegen.cuda import building
    from ptqc.codegen.cuda.jobs import CudaChoices
    from ptqc.codegen.kernels.jobs import write_job
    from ptqc.codegen.program.batching import Batching
    from ptqc.errors import VerificationError

    right = building.build_kernels

    def faulty(ptx: str, library: Path) -> list[str]:
        return right(ptx.replace("cvt.rni.f32.f32", "cvt.rmi.f32.f32"), library)

    building.build_kernels = faulty
    made, file = residual()
    write_job(folder, made.lowered, file, FEEDS, CudaChoices(Batching(2), ("sm_80",)))
    try:
        building.build(folder)
    except VerificationError as error:
        print(error)


if __name__ == "__main__":
    tests = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(tests), str(tests / "codegen" / "cpu")]
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    main(Path(sys.argv[1]))
