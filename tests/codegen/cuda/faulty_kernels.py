"""Plants faults into the PTX of a library, one after the other; prints what the verification says of each, as JSON.

`python faulty_kernels.py whole|cropped ORDERS FOLDER FAULT…`: the network as a whole, or as if it were a large one;
with threads in so many orders. Without faults, all of them and "none", which changes nothing.

A process of its own, that forks one for each fault: a library is opened only once.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults import FAULTS, Change


def verdicts(made: Any, change: Change, room: Path, orders: int) -> list[str]:
    """What the verification says with threads in several orders, in a process of its own."""
    from dataclasses import replace

    room.mkdir()
    file = room / "told.json"
    if pid := os.fork():
        os.waitpid(pid, 0)
        result: list[str] = json.loads(file.read_text()) if file.is_file() else ["crashed"] * orders
        return result
    ptx = change(made.image.ptx)
    image = room / made.image.path.name
    image.write_bytes(made.image.path.read_bytes())
    changed = replace(made, image=replace(made.image, path=image, ptx=ptx))
    result = ["changes nothing"] if ptx == made.image.ptx else [_verdict(changed, order) for order in range(orders)]
    file.write_text(json.dumps(result))
    os._exit(0)


def _verdict(made: Any, order: int) -> str:
    from ptqc.codegen.cuda import building, verification
    from ptqc.errors import PtqcError

    def take_order(number: int) -> None:
        """Whatever the run."""
        del number
        os.environ[verification.ORDER] = str(order)

    verification.take_order = take_order
    try:
        building.verified(made, 2)
    except PtqcError as error:
        return str(error)
    except Exception as error:  # a launch that fails, told by TVM
        return f"{type(error).__name__}: {error}"[:300]
    return "not found"


def main(how: str, orders: int, folder: Path, faults: Sequence[str]) -> None:
    """Build once, then verify each fault."""
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()
    from dataclasses import replace

    from small import FEEDS, network

    from ptqc.codegen.cuda import building, verification
    from ptqc.codegen.cuda.backend import CUDA
    from ptqc.codegen.cuda.jobs import CudaChoices
    from ptqc.codegen.cuda.toolkit import Toolkit
    from ptqc.codegen.kernels import lowering
    from ptqc.codegen.kernels.assignment import Assignment
    from ptqc.codegen.kernels.jobs import write_job
    from ptqc.codegen.program.batching import Batching

    if how == "cropped":
        verification.MOST_OPERATIONS = 0
        verification.CROPPING = replace(verification.CROPPING, most=300_000)
    made, file = network()
    write_job(folder, made.lowered, file, FEEDS, CudaChoices(Batching(2), ("sm_80",)))
    value = Assignment.read(folder)
    program = lowering.program(value.lowered, value.seen, CUDA, value.batching)
    library = building.write(program, Toolkit.require(), ["sm_80"], folder)
    planted = {"none": lambda ptx: ptx, **FAULTS}
    names = list(faults) or list(planted)
    print(json.dumps({name: verdicts(library, planted[name], folder / f"{i}", orders) for i, name in enumerate(names)}))


if __name__ == "__main__":
    tests = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(tests), str(tests / "codegen" / "cpu")]
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
