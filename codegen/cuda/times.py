"""How long each kernel of a program takes on a GPU for one sample: measured once, kept in the store, for budgets."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda import building
from ptqc.codegen.cuda.building import program_of
from ptqc.codegen.cuda.gpu_specs import CHIPS, gpu_of
from ptqc.codegen.cuda.predictions import predicted
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.cuda.trials import Axes, KernelTrial, TimedVariant, TimingEffort, TrialJob, TrialTimes
from ptqc.codegen.kernels.assignment import Assignment
from ptqc.codegen.kernels.process import JOB, Work
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.program import CompiledKernel, Program, ProgramStep
from ptqc.codegen.program.timing import TimedProgram
from ptqc.errors import TargetError
from ptqc.runtime.cuda import ADDRESSES, CudaDevice
from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store

# Timing on a GPU: variants of kernels become a library, which another process runs and times (`trial_worker.py`).

# Seconds that a process may take to start, to load kernels and to end.
GRACE = 120.0
TRY = Work("ptqc.codegen.cuda.trial_worker:run")
# By the key of a kernel: a step that has it, and its variants by their labels, the first one first.
Candidates = Mapping[str, tuple[ProgramStep, Mapping[str, CompiledKernel]]]


@dataclass(frozen=True)
class DeviceTimer:
    """Times kernels on a GPU. gpus: architectures that there is machine code for where its own is not known."""

    device: CudaDevice
    tools: Toolkit
    gpus: Sequence[str]
    effort: TimingEffort

    @property
    def gpu(self) -> str:
        """The architecture of the GPU."""
        return gpu_of(self.device.capability)

    @property
    def key(self) -> dict[str, Any]:
        """What times depend on, beside the kernel."""
        return {
            "device": self.device.to_json(),
            "kernels": _version(),
            "tvm": metadata.version(PACKAGE),
            "nvcc": self.tools.version,
        }

    def times(
        self, layouts: Mapping[str, Layout], candidates: Candidates, seconds: float
    ) -> tuple[list[TrialTimes], str]:
        """Times of some kernels in about so many seconds, and what went wrong, if anything did."""
        with scratch() as temporary:
            folder = Path(temporary)
            program = _program(layouts, candidates)
            gpus = [self.gpu] if self.gpu in CHIPS else list(self.gpus)
            try:
                building.write(program, self.tools, gpus, folder)
            except TargetError as error:  # of the compilers
                return [], str(error)
            trials = tuple(_trial(layouts, key, *result) for key, result in candidates.items())
            TrialJob(trials, replace(self.effort, seconds=seconds), self.device.is_emulator).write(folder)
            results, ended = TRY.attempt(folder, seconds + GRACE, ADDRESSES)
        problem = f"the process that runs kernels on the GPU {ended}" if ended else str(results["problem"])
        return list(map(TrialTimes.from_json, results.get("trials", ()))), problem


def _program(layouts: Mapping[str, Layout], candidates: Candidates) -> Program:
    """All variants side by side, those of a kernel on the same inputs."""
    outputs: dict[str, Layout] = {}
    steps, inputs = list[ProgramStep](), dict[str, None]()
    for number, (step, variants) in enumerate(candidates.values()):
        names = {f"x{number}.{place}": layouts[name] for place, name in enumerate(step.arguments)}
        outputs |= names
        inputs |= dict.fromkeys(names)
        for place, built in enumerate(variants.values()):
            name = f"y{number}.{place}"
            outputs[name] = layouts[step.output]
            steps.append(ProgramStep(built, tuple(names), name, name))
    return Program(tuple(steps), outputs, tuple(inputs), tuple(step.output for step in steps))


def _trial(
    layouts: Mapping[str, Layout], key: str, step: ProgramStep, variants: Mapping[str, CompiledKernel]
) -> KernelTrial:
    timed = tuple(TimedVariant(label, built.name, len(built.constants)) for label, built in variants.items())
    return KernelTrial(key, tuple(_kind(layouts[name]) for name in step.arguments), _kind(layouts[step.output]), timed)


def _kind(layout: Layout) -> tuple[str, Axes]:
    """Type and axes of a sample, as kernels take it."""
    return str(np.dtype(layout.stored)), tuple(layout.axes)


def _version() -> str:
    """A digest of the code that writes kernels of this target."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# Kernels in a library.
TOGETHER = 24


@dataclass(frozen=True)
class KernelTimer:
    """Times kernels as they are predicted to be fastest. What follows a product, or comes before, is in its kernel."""

    timer: DeviceTimer
    store: Store

    def __call__(self, program: Program) -> list[float]:
        """Microseconds of each step. Raises TargetError where one cannot be measured."""
        steps = {step.kernel.name: step for step in program.steps}
        results = dict(self._known(steps))
        missing = [name for name in steps if name not in results]
        for first in range(0, len(missing), TOGETHER):
            together = missing[first : first + TOGETHER]
            candidates = {name: (steps[name], {name: steps[name].kernel}) for name in together}
            times, problem = self.timer.times(program.layouts, candidates, self.timer.effort.seconds)
            for one in times:
                (results[one.key],) = one.microseconds[one.key]
                self.store.put(self._key(one.key), {"microseconds": results[one.key]}, {})
            if left := [name for name in together if name not in results]:
                message = problem or f"{self.timer.effort.seconds:.0f} s were over"
                raise TargetError(
                    f"{len(left)} kernels could not be timed on {self.timer.device.name}, {left[0]} among them: "
                    f"{message}; with --tune off their times are predicted"
                )
        return [results[step.kernel.name] for step in program.steps]

    def _known(self, names: Iterable[str]) -> Iterator[tuple[str, float]]:
        for name in names:
            entry = self.store.get(self._key(name))
            if entry is not None:
                yield name, float(entry.document["microseconds"])

    def _key(self, name: str) -> dict[str, Any]:
        return {"what": "time of a kernel on a GPU for one sample", "kernel": name, **self.timer.key}


# How long the library of a program takes, and each of its calls: measured on a GPU, or predicted.

NANOSECONDS = 1e3


def time(folder: Path) -> dict[str, Any]:
    """Times of the programs of a job, each in a folder of its own."""
    folders = [folder / name for name in json.loads((folder / JOB).read_text())["programs"]]
    return {"programs": [timed(each).to_json() for each in folders]}


def timed(folder: Path) -> TimedProgram:
    """A program of a job. Raises TargetError where its kernels cannot be measured on the GPU that the job names.

    Predicted, each call takes its longest time on the chips of the job.
    """
    assignment = Assignment.read(folder)
    program, device = program_of(assignment), assignment.job["device"]
    if device is None:
        results = [max(step[gpu] for gpu in assignment.job["gpus"]) for step in predicted(program)]
    else:
        effort = TimingEffort.from_json(assignment.job["effort"])
        timer = DeviceTimer(CudaDevice.from_json(device), Toolkit.require(), assignment.job["gpus"], effort)
        results = KernelTimer(timer, Store(Path(assignment.job["store"])))(program)
    times = [NANOSECONDS * microseconds for microseconds in results]
    return TimedProgram.of(Listing.of(program), sum(times), times)
