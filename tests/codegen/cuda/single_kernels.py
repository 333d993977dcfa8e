"""Kernels one by one in the emulator, each with what it has to give: a process of its own.

`python single_kernels.py CASES KIND FOLDER [FAULT… | "all faults"]`: CASES is a module with a function `cases`, which
gives those of a kind, with `FAULTS`, changes of PTX by their names, and perhaps with `GPUS`, the chips that they are
compiled for. Prints by case how far its results are off; or by fault what is found, in three orders of threads.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

# Of modules that name no others.
GPUS = ("sm_80", "sm_90a")
ORDERS = ("0", "3", "7")


@dataclass(frozen=True)
class Case:
    """A kernel with one input. given, wanted: arrays (samples, *shape). tolerance: as a share of the norm of `wanted`;
    of integers none may differ."""

    kernel: Any
    x: Any
    y: Any
    given: np.ndarray
    wanted: np.ndarray
    tolerance: float = 0.0

    def off(self, result: np.ndarray) -> float:
        """Integers that differ, or the distance as a share of the norm."""
        if self.wanted.dtype.kind == "u":
            return float(np.count_nonzero(result != self.wanted))
        distance = np.linalg.norm(result.astype(np.float64) - self.wanted) / np.linalg.norm(self.wanted)
        return float("inf") if np.isnan(distance) else float(distance)


def program(cases: Mapping[str, Case]) -> Any:
    """All kernels side by side."""
    from ptqc.codegen.program.program import Program, ProgramStep

    layouts = {
        f"{name}/{end}": layout for name, case in cases.items() for end, layout in (("x", case.x), ("y", case.y))
    }
    steps = tuple(ProgramStep(case.kernel, (f"{name}/x",), f"{name}/y", f"{name}/y") for name, case in cases.items())
    inputs, outputs = (tuple(f"{name}/{end}" for name in cases) for end in "xy")
    return Program(steps, layouts, inputs, outputs)


def found(loaded: Any, cases: Mapping[str, Case], ptx: str) -> dict[str, float]:
    """How far each case is off, at most, with the kernels for any architecture that there are some for."""
    from ptqc.codegen.cuda.verification import each_chip

    off = dict.fromkeys(cases, 0.0)
    for _ in each_chip(ptx):
        for call, (name, case) in zip(loaded.listing.calls, cases.items(), strict=True):
            off[name] = max(off[name], case.off(loaded(call, [case.given], len(case.given))))
    return off


def verdicts(made: Any, cases: Mapping[str, Case], change: Callable[[str], str], room: Path) -> list[str]:
    """What a fault does in each order, in a process of its own: a library is opened only once."""
    ptx = change(made.image.ptx)
    if ptx == made.image.ptx:
        return ["changes nothing"]
    room.mkdir()
    file = room / "told.json"
    if pid := os.fork():
        os.waitpid(pid, 0)
        return json.loads(file.read_text()) if file.is_file() else ["crashed"]
    try:
        image = room / made.image.path.name
        image.write_bytes(made.image.path.read_bytes())
        loaded = replace(made, image=replace(made.image, path=image, ptx=ptx)).emulated()
        file.write_text(json.dumps([verdict(loaded, cases, ptx, order) for order in ORDERS]))
    except Exception as error:  # PTX that the emulator does not know
        file.write_text(json.dumps([f"is refused: {error}"[:300]]))
    finally:
        os._exit(0)


def verdict(loaded: Any, cases: Mapping[str, Case], ptx: str, order: str) -> str:
    """What a fault does in one order."""
    os.environ["PTQC_EMULATOR_ORDER"] = order
    try:
        off = found(loaded, cases, ptx)
    except Exception as error:  # a launch that fails, told by TVM
        return f"stops: {error}"[:300]
    wrong = [name for name, case in cases.items() if not off[name] <= case.tolerance]
    return f"differs: {', '.join(wrong)}" if wrong else "not found"


def main(module: str, kind: str, folder: Path, faults: Sequence[str]) -> None:
    """Build once, then run all cases, or each fault."""
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins

    load_stand_ins()

    from ptqc.codegen.cuda import building
    from ptqc.codegen.cuda.toolkit import Toolkit

    drawn = import_module(module)
    cases = dict(drawn.cases(kind))
    made = building.write(program(cases), Toolkit.require(), list(getattr(drawn, "GPUS", GPUS)), folder)
    codes = [code for each in made.image.codes.values() for code in each.values()]
    spilled = sum(code.spilled_bytes for code in codes)
    if not faults:
        os.environ["PTQC_EMULATOR_ORDER"] = ORDERS[-1]
        off = found(made.emulated(), cases, made.image.ptx)
        wrong = {name: off[name] for name, case in cases.items() if not off[name] <= case.tolerance}
        counted = {
            f"{gpu} {name}": code.tensor_core_instructions
            for gpu, each in made.image.codes.items()
            for name, code in each.items()
        }
        serialized = [name for each in made.image.codes.values() for name, code in each.items() if code.is_serialized]
        record = {"off": off, "wrong": wrong, "spilled": spilled, "serialized": serialized}
        print(json.dumps({**record, "tensor_core_instructions": counted}))
        return
    planted = drawn.FAULTS if faults == ["all faults"] else {name: drawn.FAULTS[name] for name in faults}
    verdicts_of = {
        name: verdicts(made, cases, change, folder / f"fault{i}") for i, (name, change) in enumerate(planted.items())
    }
    print(json.dumps(verdicts_of))


if __name__ == "__main__":
    tests = Path(__file__).resolve().parent.parent.parent
    sys.path[:0] = [str(tests), str(tests / "codegen" / "cpu")]
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would load it, for seconds and without need
    sys.modules["single_kernels"] = sys.modules["__main__"]
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
