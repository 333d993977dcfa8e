"""Where the times of kernels come from that choose their tiles: this machine's GPU, a table, or nowhere."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ptqc.codegen.cuda.building import program_of
from ptqc.codegen.cuda.gpu_specs import CHIPS, gpu_of
from ptqc.codegen.cuda.isa import ThreadLoops
from ptqc.codegen.cuda.job_files import DONE, TARGET, TUNING_WORKER
from ptqc.codegen.cuda.jobs import EFFORT, CudaChoices
from ptqc.codegen.cuda.options import AUTO, OFF, QUICK, CudaOptions
from ptqc.codegen.cuda.times import DeviceTimer
from ptqc.codegen.cuda.times_table import GpuTimes, MeasuredKernel
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.cuda.trials import TimingEffort
from ptqc.codegen.cuda.tuning import tried, tunable
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.assignment import Assignment, write_document
from ptqc.codegen.kernels.job_files import JOB, REPORT
from ptqc.codegen.kernels.jobs import program_job, run_job
from ptqc.codegen.kernels.writing import written_with
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.errors import NoKernel, TargetError, UsageError
from ptqc.execution.onnxruntime import Feeds
from ptqc.ir.lowered import Lowered
from ptqc.runtime import cuda
from ptqc.runtime.cuda import CudaDevice
from ptqc.utils.progress import SILENT_STAGE, Stage, following, tell
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store


@dataclass(frozen=True)
class Tuner:
    """What a compile does about tiles. device: a GPU that kernels are measured on. given: times that are there already.
    is_asked: whether a failure to measure ends the compile. reason: why a GPU that is there is not asked."""

    device: CudaDevice | None = None
    given: GpuTimes | None = None
    is_asked: bool = False
    reason: str = ""

    @classmethod
    def of(cls, options: CudaOptions) -> Self:
        """What `CudaOptions.tune` asks for. Raises UsageError where it is none of what there is, and TargetError where
        there has to be a GPU and is none."""
        if options.tune == OFF:
            return cls()
        if options.tune == QUICK:
            return cls(_found(), is_asked=True)
        if options.tune != AUTO:
            return cls(given=_read(Path(options.tune)))
        try:
            device = cuda.find()
        except TargetError:
            return cls()
        own = gpu_of(device.capability)
        if options.gpus == (own,):
            return cls(device)
        return cls(
            reason=f"{device.name} is {own}, and the library is for {', '.join(options.gpus)}, which all run the same "
            "tiles: --tune quick takes those that are the fastest here"
        )

    def tuned(
        self, lowered: Lowered, samples: Sequence[Feeds], choices: CudaChoices, stage: Stage = SILENT_STAGE
    ) -> CudaChoices:
        """The choices with times of the kernels of a graph. Raises NoKernel; TargetError where times have to be."""
        if self.device is None:
            return replace(choices, times=self.given, untuned=self.reason)
        try:
            times = _measured(lowered, samples, replace(choices, device=self.device, effort=EFFORT), stage)
        except NoKernel:
            raise
        except TargetError as error:
            if self.is_asked:
                raise
            return replace(choices, untuned=str(error))
        return replace(choices, times=times)


def _found() -> CudaDevice:
    try:
        return cuda.find()
    except TargetError as error:
        raise TargetError(
            f"tuning times kernels on this machine's GPU, but {error}; compile with --tune off"
        ) from error


def _read(path: Path) -> GpuTimes:
    if not path.exists():
        known = ", ".join((AUTO, OFF, QUICK))
        raise UsageError(f"tune is {str(path)!r}; known: {known}, or a folder or file that a tuned compile wrote")
    return GpuTimes.read(path)


def _measured(lowered: Lowered, samples: Sequence[Feeds], choices: CudaChoices, stage: Stage) -> GpuTimes:
    with scratch() as temporary:
        job = Path(temporary)
        (job / JOB).write_text(json.dumps(program_job(job, lowered, samples, choices)))
        with following(job / DONE, stage):
            run_job(job, TUNING_WORKER, TARGET)
        return GpuTimes.from_json(json.loads((job / REPORT).read_text()))


# Measures the variants of layers on tensor cores on a GPU, once: what the store has is not measured again.

# Kernels in a library, each in several variants.
TOGETHER = 4


@dataclass(frozen=True)
class Measuring:
    """Measures the kernels of programs. done: told of how many are done, in words."""

    timer: DeviceTimer
    store: Store | None
    done: Callable[[str], object] = lambda _label: None

    @property
    def _effort(self) -> TimingEffort:
        return self.timer.effort

    def __call__(self, program: Program) -> GpuTimes:
        """Times of all kernels with variants; what the store has is not measured again."""
        device, ends = self.timer.device, time.monotonic() + self._effort.seconds
        steps = tunable(program)
        chosen = {key: tried(step, self.timer.gpu) for key, step in steps.items()}
        keys = {key: self._store_key(key, chosen[key]) for key in steps}
        entries = {key: self.store.get(name) for key, name in keys.items()} if self.store is not None else {}
        found = {key: MeasuredKernel.from_json(entry.document) for key, entry in entries.items() if entry is not None}
        reasons: list[str] = []
        missing = [key for key in steps if key not in found]
        for first in range(0, len(missing), TOGETHER):
            if (left := ends - time.monotonic()) <= 0:
                break
            trials = {key: (steps[key], chosen[key]) for key in missing[first : first + TOGETHER]}
            made, problem = self._measured(program, trials, left)
            reasons += [problem] if problem else []
            found |= made
            self.done(f"timed {len(found):,} of {len(steps):,} kernels")
            if not made:
                break  # as it would be with all others
            if self.store is not None:
                for key, one in made.items():
                    self.store.put(keys[key], one.to_json(), {})
        told = "; ".join(dict.fromkeys(reasons)) or f"{self._effort.seconds:.0f} s were over"
        missing_told = f"{len(steps) - len(found):,} kernels left: {told}" if len(found) < len(steps) else ""
        return GpuTimes(device, self._effort.samples, {key: found[key] for key in steps if key in found}, missing_told)

    def _measured(
        self, program: Program, trials: Mapping[str, tuple[ProgramStep, Sequence[Variant]]], seconds: float
    ) -> tuple[dict[str, MeasuredKernel], str]:
        """What was measured of some kernels, and what went wrong."""
        candidates = {
            key: (step, {variant.label: variant.built() for variant in variants})
            for key, (step, variants) in trials.items()
        }
        times, problem = self.timer.times(program.layouts, candidates, seconds)
        firsts = {key: variants[0] for key, (_, variants) in trials.items()}
        return {
            one.key: MeasuredKernel(firsts[one.key].label, one, tuple(self._predicted(firsts[one.key])))
            for one in times
        }, problem

    def _predicted(self, variant: Variant) -> Iterator[float]:
        """Microseconds for each size of batch, of a known chip."""
        for samples in self._effort.samples if self.timer.gpu in CHIPS else ():
            yield variant.predicted(samples)[self.timer.gpu]

    def _store_key(self, key: str, variants: Sequence[Variant]) -> dict[str, Any]:
        return {
            "what": "times of a kernel on a GPU",
            "kernel": key,
            "variants": [variant.label for variant in variants],
            "samples": list(self._effort.samples),
            **self.timer.key,
        }


def measured(folder: Path) -> None:
    """Do a job: measure the kernels of its network on its GPU. Raises TargetError where none could be."""
    given = Assignment.read(folder)
    store, effort = Store(Path(given.job["store"])), TimingEffort.from_json(given.job["effort"])
    if not given.batching.is_any:
        effort = replace(effort, samples=effort.samples[:1])
    timer = DeviceTimer(CudaDevice.from_json(given.job["device"]), Toolkit.require(), given.job["gpus"], effort)
    with written_with(ThreadLoops()):
        times = Measuring(timer, store, partial(tell, folder / DONE))(program_of(given))
    if times.missing and not times.kernels:
        raise TargetError(f"no kernel could be measured on {times.device.name}: {times.missing}")
    write_document(folder / REPORT, times.to_json())
