"""How long each kernel of a program takes on a GPU for one sample: measured once, kept in the store, for budgets."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ptqc.codegen.cuda.device_timer import DeviceTimer
from ptqc.codegen.program.program import Program
from ptqc.errors import TargetError
from ptqc.utils.store import Store

# Kernels in a library.
TOGETHER = 24


@dataclass(frozen=True)
class KernelTimer:
    """Times kernels as they are predicted to be fastest. What follows a product, or comes before, is in its kernel."""

    timer: DeviceTimer
    store: Store

    def __call__(self, program: Program) -> list[float]:
        """Microseconds of each step. Raises TargetError where one cannot be measured."""
        steps = {step.built.name: step for step in program.steps}
        found = dict(self._known(steps))
        missing = [name for name in steps if name not in found]
        for first in range(0, len(missing), TOGETHER):
            together = missing[first : first + TOGETHER]
            candidates = {name: (steps[name], {name: steps[name].built}) for name in together}
            times, problem = self.timer.times(program.layouts, candidates, self.timer.effort.seconds)
            for one in times:
                (found[one.key],) = one.microseconds[one.key]
                self.store.put(self._key(one.key), {"microseconds": found[one.key]}, {})
            if left := [name for name in together if name not in found]:
                told = problem or f"{self.timer.effort.seconds:.0f} s were over"
                raise TargetError(
                    f"{len(left)} kernels could not be timed on {self.timer.device.name}, {left[0]} among them: "
                    f"{told}; with --tune off their times are predicted"
                )
        return [found[step.built.name] for step in program.steps]

    def _known(self, names: Iterable[str]) -> Iterator[tuple[str, float]]:
        for name in names:
            entry = self.store.get(self._key(name))
            if entry is not None:
                yield name, float(entry.document["microseconds"])

    def _key(self, name: str) -> dict[str, Any]:
        return {"what": "time of a kernel on a GPU for one sample", "kernel": name, **self.timer.key}
