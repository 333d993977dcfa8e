"""Several networks in one library, each compared with ONNX Runtime: one compilation is much faster than many."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from lowering import Quantized

from ptqc.codegen.cpu import isa, worker
from ptqc.codegen.cpu.jobs import Choices
from ptqc.codegen.kernels import lowering
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.jobs import write_job
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.program import verify
from ptqc.codegen.program.batching import Batching, Seen, batched
from ptqc.codegen.program.expansion import expanded
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.errors import VerificationError
from ptqc.execute.onnxruntime import Feeds
from ptqc.native.library import Library


@dataclass
class Found:
    """compared: of all networks. wrong: messages by the network's name."""

    compared: verify.Compared = field(default_factory=verify.Compared)
    wrong: dict[str, str] = field(default_factory=dict)


def program_of(made: Quantized, feeds: Sequence[Feeds], chosen: Isa, folder: Path) -> Program:
    """The kernels of a network; what ONNX Runtime computes is left in the folder. Raises TargetError."""
    folder.mkdir()
    file = export(made.lowered, made.model)
    made = replace(made, lowered=replace(made.lowered, model=expanded(made.lowered.model)))

    def program(batching: Batching, taken: Sequence[Feeds]) -> Program:
        return _program(made, file, taken, Choices(batching, chosen.name), folder)

    return batched(made.lowered.model, file, feeds, program)


def _program(made: Quantized, file: Exported, feeds: Sequence[Feeds], choices: Choices, folder: Path) -> Program:
    write_job(folder, made.lowered, file, feeds, choices)
    seen = Seen.from_json(json.loads((folder / "job.json").read_text())["values"])
    return lowering.program(made.lowered, seen, isa.named(choices.isa), choices.batching)


def compared(programs: Mapping[str, Program], chosen: Isa, folder: Path) -> Found:
    """Compile the networks and compare each with the values in its own folder inside this one."""
    whole = _merged(programs)
    worker.write(whole, chosen, folder)
    library = worker.load(folder, whole).library
    found, first = Found(), 0
    for name, program in programs.items():
        count = sum(len(step.built.constants) for step in program.steps)
        own = cast(Library, SimpleNamespace(kernel=library.kernel, constants=library.constants[first : first + count]))
        first += count
        try:
            _compare(verify.Loaded(Listing.of(program), own), folder / name, found.compared)
        except VerificationError as error:
            found.wrong[name] = str(error)
    return found


def _merged(programs: Mapping[str, Program]) -> Program:
    """All networks side by side."""
    steps: list[ProgramStep] = []
    layouts: dict[str, Layout] = {}
    inputs: tuple[str, ...] = ()
    for network, program in programs.items():

        def own(name: str, network: str = network) -> str:
            return f"{network}/{name}"

        for step in program.steps:
            given, placed = tuple(map(own, step.inputs)), tuple(map(own, step.placed))
            steps.append(replace(step, inputs=given, output=own(step.output), value=own(step.value), placed=placed))
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
    rounded = [call for call in loaded.listing.calls if call.family == "quantize"]
    if own.different and all(call.inputs[0] in loaded.listing.inputs for call in rounded):
        raise VerificationError(f"end to end: {own.different}")
