"""Measures the variants of layers on tensor cores on a GPU, once: what the store has is not measured again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ptqc.codegen.cuda.building import program_of
from ptqc.codegen.cuda.gpu_specs import CHIPS
from ptqc.codegen.cuda.times import DeviceTimer
from ptqc.codegen.cuda.times_table import GpuTimes, MeasuredKernel
from ptqc.codegen.cuda.toolkit import Toolkit
from ptqc.codegen.cuda.trials import DONE, TimingEffort
from ptqc.codegen.cuda.tuning import tried, tunable
from ptqc.codegen.cuda.variants import Variant
from ptqc.codegen.kernels.assignment import Assignment
from ptqc.codegen.program.program import Program, ProgramStep
from ptqc.errors import TargetError
from ptqc.runtime.cuda import CudaDevice
from ptqc.utils.progress import tell
from ptqc.utils.store import Store

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
        results = {key: MeasuredKernel.from_json(entry.document) for key, entry in entries.items() if entry is not None}
        reasons: list[str] = []
        missing = [key for key in steps if key not in results]
        for first in range(0, len(missing), TOGETHER):
            if (left := ends - time.monotonic()) <= 0:
                break
            trials = {key: (steps[key], chosen[key]) for key in missing[first : first + TOGETHER]}
            result, problem = self._measured(program, trials, left)
            reasons += [problem] if problem else []
            results |= result
            self.done(f"timed {len(results):,} of {len(steps):,} kernels")
            if not result:
                break  # as it would be with all others
            if self.store is not None:
                for key, one in result.items():
                    self.store.put(keys[key], one.to_json(), {})
        message = "; ".join(dict.fromkeys(reasons)) or f"{self._effort.seconds:.0f} s were over"
        missing_message = f"{len(steps) - len(results):,} kernels left: {message}" if len(results) < len(steps) else ""
        return GpuTimes(
            device, self._effort.samples, {key: results[key] for key in steps if key in results}, missing_message
        )

    def _measured(
        self, program: Program, trials: Mapping[str, tuple[ProgramStep, Sequence[Variant]]], seconds: float
    ) -> tuple[dict[str, MeasuredKernel], str]:
        candidates = {
            key: (step, {variant.label: step.kernel.cut(variant) for variant in variants})
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


def measure(folder: Path) -> dict[str, Any]:
    """Measure the kernels of a job's network on its GPU. Raises TargetError where none could be."""
    assignment = Assignment.read(folder)
    store, effort = Store(Path(assignment.job["store"])), TimingEffort.from_json(assignment.job["effort"])
    if not assignment.batching.is_any:
        effort = replace(effort, samples=effort.samples[:1])
    timer = DeviceTimer(
        CudaDevice.from_json(assignment.job["device"]), Toolkit.require(), assignment.job["gpus"], effort
    )
    times = Measuring(timer, store, partial(tell, folder / DONE))(program_of(assignment))
    if times.missing and not times.kernels:
        raise TargetError(f"no kernel could be measured on {times.device.name}: {times.missing}")
    return times.to_json()
