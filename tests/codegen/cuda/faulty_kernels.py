"""Plants faults into the PTX of a library, one after the other; prints what the verification says of each, as JSON.

`python faulty_kernels.py whole|cropped FOLDER FAULT…`: the network as a whole, or as if it were a large one.

A process of its own, that forks one for each fault: a library is opened only once.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FAULTS: dict[str, Callable[[str], str]] = {
    "none": lambda ptx: ptx,
    "rounded down": lambda ptx: ptx.replace("cvt.rni.f32.f32", "cvt.rmi.f32.f32"),
    "a barrier left out": lambda ptx: re.sub(r"\n\s*bar(rier)?\.sync[^;]*;", "\n", ptx),
    "copies waited for one step too late": lambda ptx: re.sub(r"wait_group\s+(\d+);", r"wait_group 1\1;", ptx),
    "copies never waited for": lambda ptx: re.sub(r"cp\.async\.wait_(group\s+\d+|all);", "cp.async.commit_group;", ptx),
    "inputs with a sign": lambda ptx: ptx.replace("s32.u8.s8.s32", "s32.s8.s8.s32"),
    "registers of weights exchanged": lambda ptx: re.sub(r"\{(%r\d+), (%r\d+)\}, \{", r"{\2, \1}, {", ptx),
    "bytes of depthwise inputs exchanged": lambda ptx: ptx.replace(" 29538;", " 29522;"),
}  # fmt: skip


def verdict(made: Any, change: Callable[[str], str], room: Path) -> str:
    """What the verification says, in a process of its own."""
    from dataclasses import replace

    from ptqc.codegen.cuda import building
    from ptqc.errors import PtqcError

    room.mkdir()
    told = room / "told.txt"
    if pid := os.fork():
        os.waitpid(pid, 0)
        return told.read_text() if told.is_file() else "crashed"
    ptx = change(made.image.ptx)
    image = room / made.image.path.name
    image.write_bytes(made.image.path.read_bytes())
    try:
        building.verified(replace(made, image=replace(made.image, path=image, ptx=ptx)), 2)
        told.write_text("changes nothing" if ptx == made.image.ptx else "not found")
    except PtqcError as error:
        told.write_text(str(error))
    except Exception as error:  # a launch that fails, told by TVM
        told.write_text(f"{type(error).__name__}: {error}"[:300])
    os._exit(0)


def main(how: str, folder: Path, faults: Sequence[str]) -> None:
    """Build once, then verify each fault."""
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()
    from dataclasses import replace

    from small import FEEDS, network

    from ptqc.codegen.cuda import building, verification
    from ptqc.codegen.cuda.jobs import CudaChoices
    from ptqc.codegen.cuda.layers import CUDA
    from ptqc.codegen.cuda.loops import ThreadLoops
    from ptqc.codegen.cuda.toolkit import Toolkit
    from ptqc.codegen.kernels import lowering
    from ptqc.codegen.kernels.assignment import Assignment
    from ptqc.codegen.kernels.jobs import write_job
    from ptqc.codegen.kernels.loops import written_with
    from ptqc.codegen.program.batching import Batching

    if how == "cropped":
        verification.MOST_OPERATIONS = 0
        verification.CROPPING = replace(verification.CROPPING, most=300_000)
    made, file = network()
    write_job(folder, made.lowered, file, FEEDS, CudaChoices(Batching(2), ("sm_80",)))
    given = Assignment.read(folder)
    with written_with(ThreadLoops()):
        program = lowering.program(given.lowered, given.seen, CUDA, given.batching)
        library = building.write(program, Toolkit.require(), ["sm_80"], folder)
    print(json.dumps({name: verdict(library, FAULTS[name], folder / f"fault{i}") for i, name in enumerate(faults)}))


if __name__ == "__main__":
    tests = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(tests), str(tests / "codegen" / "cpu")]
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
