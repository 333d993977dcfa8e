"""Kernels on their own: many are compiled into one library, and each is run on given values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.writing import PROCESSOR, KernelSource
from ptqc.codegen.program import verify
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.codegen.targets import TargetOutput
from ptqc.runtime.library import Library


def present(*more: Isa) -> list[Isa]:
    """Of AVX2, AVX-512 VNNI and these, the instruction sets of this processor."""
    system = Path("/proc/cpuinfo")
    flags = set(system.read_text().split()) if system.is_file() else set()
    return [known for known in (isa.AVX2, isa.AVX512_VNNI, *more) if flags.issuperset(known.features)]


def best_and_slowly_least(sets: Sequence[Isa]) -> list[Any]:
    """The last of these as a parameter of a test; the first as well where slow tests run."""
    least = [pytest.param(sets[0], id=sets[0].name, marks=pytest.mark.slow)] if len(sets) > 1 else []
    return [*least, *(pytest.param(best, id=best.name) for best in sets[-1:])]


@dataclass(frozen=True)
class Case:
    """A kernel, the layouts and values of its inputs (batch first), and the layout of its output."""

    kernel: KernelSource
    given: Sequence[Layout]
    values: Sequence[np.ndarray]
    output: Layout


def run(
    cases: Sequence[Case], chosen: Isa, folder: Path, load: Callable[[Path, Program], verify.Loaded] = worker.load
) -> list[np.ndarray]:
    """What each kernel computes; all are compiled together. load: opens the library."""
    steps: list[ProgramStep] = []
    layouts: dict[str, Layout] = {}
    for number, case in enumerate(cases):
        names = [f"x{number}_{place}" for place in range(len(case.given))]
        layouts |= dict(zip(names, case.given, strict=True)) | {f"y{number}": case.output}
        steps.append(ProgramStep(case.kernel.compile(PROCESSOR), tuple(names), f"y{number}", f"y{number}"))
    inputs = tuple(name for step in steps for name in step.inputs)
    program = Program(tuple(steps), layouts, inputs, tuple(step.output for step in steps))
    worker.write(program, chosen, folder)
    loaded = load(folder, program)
    return [
        loaded(call, case.values, len(case.values[0])) for call, case in zip(loaded.listing.calls, cases, strict=True)
    ]


def opened(native: TargetOutput) -> Library:
    """The best of some built libraries."""
    (folder,) = {path.parent for path in native.files.values()}
    return Library.open(folder)
