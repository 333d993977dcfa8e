"""The process that times kernels on a GPU: a library of them in, times out.

See `trials.py`. It needs NumPy, TVM's runtime and CUDA's, and no compiler. Variants of a kernel take turns, so that a
slower moment slows all; a variant that the GPU does not run, or that gives other integers than the first one, is left
out with the reason. The report is written after each trial.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cuda.trials import KernelTrial, TimingEffort, TrialJob, TrialTimes
from ptqc.codegen.kernels.process import REPORT
from ptqc.errors import GpuMemoryError, PtqcError, TargetError
from ptqc.runtime.cuda import GpuClock, launches, refusal_of
from ptqc.runtime.cuda_library import CudaLibrary

WARM_UP, FEWEST = 2, 5
# Of inputs: codes that are numbers as FP8, too.
CODES = 127
# Of what is told of a failure.
MOST_LETTERS = 300


@dataclass
class _Runner:
    """A variant ready to run. microseconds: of each round."""

    label: str
    launch: Callable[[int], object]
    timed: Callable[[], float] = lambda: 0.0
    microseconds: list[float] = field(default_factory=list)


class GpuTrials:
    """All trials of a library on a GPU. ends: when fewer rounds have to do, on the clock."""

    def __init__(self, library: CudaLibrary, effort: TimingEffort, ends: float) -> None:
        self._library, self._effort, self._ends = library, effort, ends
        self._clock = GpuClock(0)

    def times(self, trial: KernelTrial, constants: Sequence[Any]) -> TrialTimes:
        """Times of a trial. constants: of all of its variants. Raises TargetError where the first one does not run."""
        times: dict[str, list[float]] = {one.label: [] for one in trial.variants}
        ratios: dict[str, list[float]] = {one.label: [] for one in trial.variants}
        dropped: dict[str, str] = {}
        for samples in self._effort.samples:
            try:
                runners = self._ready(trial, constants, samples, dropped)
            except GpuMemoryError:
                if not any(times.values()):
                    raise
                break
            self._race(runners)
            for runner in runners:
                times[runner.label].append(statistics.median(runner.microseconds))
                pairs = zip(runner.microseconds, runners[0].microseconds, strict=True)
                ratios[runner.label].append(statistics.median(taken / first for taken, first in pairs))
        whole = {label: tuple(each) for label, each in times.items() if label not in dropped}
        of_first = {label: exp(statistics.fmean(map(log, ratios[label]))) for label in whole}
        return TrialTimes(trial.key, whole, of_first, dropped)

    def _ready(
        self, trial: KernelTrial, constants: Sequence[Any], samples: int, dropped: dict[str, str]
    ) -> list[_Runner]:
        """Variants that run, each after one run of it; what does not goes to `dropped`. Raises GpuMemoryError."""
        operand, output = self._arguments(trial, samples)
        left, wanted, result = list(constants), None, list[_Runner]()
        for one in trial.variants:
            variant_constants, left = left[: one.constants], left[one.constants :]
            if one.label in dropped:
                continue
            runner = _Runner(one.label, self._library.launcher(one.kernel, *operand, *variant_constants, output))
            try:
                runner.launch(0)
                values = self._library.pull(output)
            except Exception as error:
                if not result:
                    raise TargetError(f"the GPU does not run {one.kernel}: {error}; compile with --tune off") from error
                dropped[one.label] = f"does not run: {error}"[:MOST_LETTERS]
                continue
            wanted = values if wanted is None else wanted
            if values.dtype.kind != "f" and not np.array_equal(values, wanted):
                dropped[one.label] = "gives other integers than the predicted tiles"
                continue
            result.append(runner)
        return result

    def _arguments(self, trial: KernelTrial, samples: int) -> tuple[list[Any], Any]:
        """Inputs, which all variants share, and what they write to."""
        random, (dtype, axes) = np.random.default_rng(0), trial.output
        try:
            inputs = [self._library.put(_drawn(random, samples, *one)) for one in trial.arguments]
            return inputs, self._library.put(np.zeros((samples, *axes), dtype))
        except Exception as error:
            raise refusal_of(error, 0, f"{samples} samples of {trial.key}") or error from error

    def _race(self, runners: Sequence[_Runner]) -> None:
        """Let variants take turns."""
        once = self._clock.microseconds(lambda: runners[0].launch(0))
        for runner in runners:
            runner.timed = self._clock.repeated(runner.launch, launches(once))
        for done in range(WARM_UP + self._effort.rounds):
            if done >= WARM_UP + FEWEST and time.monotonic() > self._ends:
                break
            for runner in runners:
                microseconds = runner.timed()
                runner.microseconds += [microseconds] if done >= WARM_UP else []


def _drawn(random: np.random.Generator, samples: int, dtype: str, axes: Sequence[int]) -> np.ndarray:
    """An argument: real numbers, codes, or zeros where these may be places in something."""
    shape, kind = (samples, *axes), np.dtype(dtype)
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, CODES, shape, kind) if kind == np.uint8 else np.zeros(shape, kind)


def _opened(folder: Path, job: TrialJob) -> CudaLibrary:
    if not job.is_emulator:
        return CudaLibrary.open(folder)
    from ptqc.codegen.cuda.emulator.opening import load_stand_ins, open_delivered

    load_stand_ins()
    room = folder / "opened"
    room.mkdir()
    return open_delivered(folder, room)


def run(folder: Path) -> None:
    """Do a job; its report is written after each trial."""
    job, result, first, problem = TrialJob.read(folder), list[Mapping[str, Any]](), 0, ""
    ends = time.monotonic() + job.effort.seconds

    def tell() -> None:
        (folder / REPORT).write_text(json.dumps({"trials": result, "problem": problem}))

    try:
        library = _opened(folder, job)
        trials = GpuTrials(library, job.effort, ends)
        for trial in job.trials:
            if time.monotonic() > ends:
                break
            count = sum(one.constants for one in trial.variants)
            result.append(trials.times(trial, library.constants[first : first + count]).to_json())
            first += count
            tell()
    except PtqcError as error:
        problem = str(error)
    tell()
