"""Several networks in one library, each compared with ONNX Runtime: one compilation is much faster than many."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from lowering import Quantized

from ptqc.codegen.cpu import worker
from ptqc.codegen.cpu.backend import CpuBackend
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.kernels import lowering
from ptqc.codegen.kernels.backend import KernelBackend
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.onnxruntime.export import export
from ptqc.codegen.program import verify
from ptqc.codegen.program.batching import Batching, Seen, batched
from ptqc.codegen.program.expansion import expanded
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.errors import VerificationError
from ptqc.execution.onnxruntime import Feeds


@dataclass
class Found:
    """compared: of all networks. wrong: messages by the network's name."""

    compared: verify.Compared = field(default_factory=verify.Compared)
    wrong: dict[str, str] = field(default_factory=dict)


def backend_of(chosen: Isa) -> KernelBackend:
    """The target that has these instructions."""
    if chosen.owner == "cpu":
        return CpuBackend(chosen)
    from ptqc.codegen.cuda.backend import CUDA

    return CUDA


def program_of(
    made: Quantized, feeds: Sequence[Feeds], chosen: Isa, folder: Path, *, may_vary: bool = False
) -> Program:
    """The kernels of a network; what ONNX Runtime computes is left in the folder. Raises TargetError."""
    folder.mkdir()
    file = export(made.lowered, made.model)
    made = replace(made, lowered=replace(made.lowered, model=expanded(made.lowered.model)))

    def program(batching: Batching, taken: Sequence[Feeds]) -> Program:
        write_job(folder, made.lowered, file, taken, Choices(batching, chosen.name))
        seen = Seen.from_json(json.loads((folder / "job.json").read_text())["values"])
        return lowering.program(made.lowered, seen, backend_of(chosen), batching)

    return batched(made.lowered.model, file, feeds, program, may_vary=may_vary)


def built(program: Program, chosen: Isa, folder: Path) -> verify.Runnable:
    """The library of a program, opened."""
    worker.write(program, chosen, folder)
    return worker.load(folder, program).library


def compared(
    programs: Mapping[str, Program],
    chosen: Isa,
    folder: Path,
    build: Callable[[Program, Isa, Path], verify.Runnable] = built,
) -> Found:
    """Compile the networks and compare each with the values in its own folder inside this one."""
    library = build(_merged(programs), chosen, folder)
    result, first = Found(), 0
    for name, program in programs.items():
        count = sum(len(step.kernel.constants) for step in program.steps)
        own = cast(
            verify.Runnable, SimpleNamespace(kernel=library.kernel, constants=library.constants[first : first + count])
        )
        first += count
        try:
            _compare(verify.Loaded(Listing.of(program).summed_exactly, own), folder / name, result.compared)
        except VerificationError as error:
            result.wrong[name] = str(error)
    return result


def _merged(programs: Mapping[str, Program]) -> Program:
    """All networks side by side."""
    steps: list[ProgramStep] = []
    layouts: dict[str, Layout] = {}
    inputs: tuple[str, ...] = ()
    for network, program in programs.items():

        def own(name: str, network: str = network) -> str:
            return f"{network}/{name}"

        for step in program.steps:
            value, placed = tuple(map(own, step.inputs)), tuple(map(own, step.placed))
            steps.append(replace(step, inputs=value, output=own(step.output), value=own(step.value), placed=placed))
        layouts |= {own(name): layout for name, layout in program.layouts.items()}
        inputs += tuple(map(own, program.inputs))
    return Program(tuple(steps), layouts, inputs, tuple(step.output for step in steps))


def _compare(loaded: verify.Loaded, folder: Path, total: verify.Compared) -> None:
    """Compare a network on all its samples; end to end too where no float part is rounded to codes."""
    own = verify.Compared()
    for path in sorted(folder.glob("values-*.npz")):
        with np.load(path) as values:
            for outcome in verify.outcomes(loaded, dict(values), {}):
                if outcome.problem:
                    raise VerificationError(outcome.problem)
                own.add(outcome)
    total.kernels += own.kernels
    total.integers += own.integers
    total.reals += own.reals
    rounded = [call for call in loaded.listing.calls if call.family in ("quantize", "quantize_float8")]
    if own.different and all(call.inputs[0] in loaded.listing.inputs for call in rounded):
        raise VerificationError(f"end to end: {own.different}")
