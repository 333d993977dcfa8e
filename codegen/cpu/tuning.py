"""Which cut of each kernel is the fastest on this machine: measured once, kept in the store, an input of a compile.

The first cuts of all kernels run in the order of the network, then the second ones, and so on, again and again, so that
weights are about as far away as in a run and a slower moment slows all. What counts is the median of a cut's time over
that of the kernel's first cut in the same round. Everything runs on one thread.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np

from ptqc.codegen.cpu.options import Tuning
from ptqc.codegen.cpu.table import Table, TunedKernel
from ptqc.codegen.kernels.families import declared
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.tiling import Cut
from ptqc.codegen.kernels.writing import Constant
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.layout import Layout
from ptqc.codegen.program.program import Alternatives, CompiledKernel, Program, ProgramStep
from ptqc.errors import TargetError, UsageError
from ptqc.runtime.runtime import PACKAGE
from ptqc.utils.machine import processor_name
from ptqc.utils.stopwatch import seconds_of
from ptqc.utils.store import Store

# Cuts of a kernel that are tried: of "quick" those that should be the fastest.
TRIED: Mapping[Tuning, int | None] = {"quick": 8, "full": None}
ROUNDS, WARM_UP = 31, 2
# Seconds after which fewer rounds have to do, and how many.
PATIENCE, FEWEST = 60.0, 7
# What another cut has to gain, of the kernel's time.
MARGIN = 0.02


def tuned(program: Program, table: Table) -> Program:
    """The program with its kernels cut as the table says; those that it does not name stay as they are.

    Raises UsageError where a kernel cannot be cut like that.
    """
    return replace(program, steps=tuple(_recut(step, table) for step in program.steps))


def _recut(step: ProgramStep, table: Table) -> ProgramStep:
    alternatives, result = step.kernel.alternatives, table.get(step.kernel.name)
    if alternatives is None or result is None or result.cut == alternatives.cuts[0]:
        return step
    if result.cut not in alternatives.cuts:
        raise UsageError(
            f"tuning.json has the tiling {tuple(result.cut)} for the kernel {step.kernel.name}, which this version "
            "does not know; tune again with --tune quick"
        )
    return replace(step, kernel=alternatives.write(result.cut))


def measure(program: Program, isa: Isa, level: Tuning, store: Store | None) -> Table:
    """The fastest cuts of a program's kernels on this machine; what the store has is not measured again."""
    distinct, tried = tunable(program), TRIED[level]
    keys = {name: _key(name, alternatives.cuts[:tried], isa) for name, (_, alternatives) in distinct.items()}
    entries = {name: store.get(key) for name, key in keys.items()} if store is not None else {}
    results = {name: TunedKernel.from_json(entry.document) for name, entry in entries.items() if entry is not None}
    if refusal := isa.refusal():  # which asks the system for what kernels need in this process
        raise TargetError(refusal)
    missing = [_Trials.of(program, *distinct[name], isa, tried) for name in distinct if name not in results]
    for name, cut in _fastest(missing):
        results[name] = cut
        if store is not None:
            store.put(keys[name], cut.to_json(), {})
    return {name: results[name] for name in distinct}


def tunable(program: Program) -> dict[str, tuple[ProgramStep, Alternatives[Cut, CompiledKernel]]]:
    """Kernels that may be cut otherwise, by name: a step that calls it, and the ways."""
    results = {step.kernel.name: (step, step.kernel.alternatives) for step in program.steps}
    return {name: (step, ways) for name, (step, ways) in results.items() if ways is not None}


def _key(name: str, cuts: Sequence[Cut], isa: Isa) -> dict[str, Any]:
    return {
        "what": "the fastest cut of a kernel",
        "kernel": name,
        "cuts": [list(cut) for cut in cuts],
        "target": str(sorted(isa.target.items())),
        "processor": processor_name(),
        "tvm": metadata.version(PACKAGE),
    }


def _fastest(trials: "Sequence[_Trials]") -> Iterator[tuple[str, TunedKernel]]:
    """The best cut of each kernel, by the kernel's name."""
    times: list[list[list[float]]] = [[[] for _ in one.runs] for one in trials]
    began = time.monotonic()
    for done in range(WARM_UP + ROUNDS):
        if done >= WARM_UP + FEWEST and time.monotonic() - began > PATIENCE:
            break
        for turn in range(max((len(one.runs) for one in trials), default=0)):
            for one, result in zip(trials, times, strict=True):
                if turn < len(one.runs):
                    seconds = seconds_of(one.runs[turn])
                    result[turn] += [seconds] if done >= WARM_UP else []
    for one, result in zip(trials, times, strict=True):
        yield one.name, _best(one.cuts, result)


def _best(cuts: Sequence[Cut], times: Sequence[Sequence[float]]) -> TunedKernel:
    ratios = [statistics.median(a / b for a, b in zip(own, times[0], strict=True)) for own in times]
    best = min(range(len(cuts)), key=ratios.__getitem__)
    return TunedKernel(cuts[best], ratios[best]) if ratios[best] < 1 - MARGIN else TunedKernel(cuts[0], 1.0)


@dataclass(frozen=True)
class _Trials:
    """A kernel in several cuts, ready to run. name: with the first one."""

    name: str
    cuts: Sequence[Cut]
    runs: Sequence[Callable[[], object]]

    @classmethod
    def of(
        cls, program: Program, step: ProgramStep, ways: Alternatives[Cut, CompiledKernel], isa: Isa, tried: int | None
    ) -> "_Trials":
        cuts = ways.cuts[:tried]
        seen = {length.name: length.seen for length in program.lengths}
        layouts = {name: program.layouts[name].sized(seen) for name in (*step.arguments, step.output)}
        lengths = [seen[name] for name in step.kernel.lengths]
        kernels = [ways.write(cut) for cut in cuts]
        library = _compiled({kernel.name: kernel.function for kernel in kernels}, isa)
        inputs, output = [layouts[name] for name in step.arguments], layouts[step.output]
        memory: dict[tuple[int, str, int], Any] = {}
        names: list[list[Layout | Stored]] = [[*inputs, *kernel.constants, output] for kernel in kernels]
        runs = [
            _call(library[kernel.name], [*(_filled(memory, i, each) for i, each in enumerate(arguments)), *lengths])
            for kernel, arguments in zip(kernels, names, strict=True)
        ]
        return cls(step.kernel.name, cuts, runs)


def _compiled(functions: Mapping[str, Any], isa: Isa) -> Any:
    """Kernels in this process."""
    import tvm

    os.environ["TVM_NUM_THREADS"] = "1"  # read once TVM runs its first parallel loop
    return tvm.compile(tvm.IRModule(functions), target=tvm.target.Target(isa.target))


def _filled(memory: dict[tuple[int, str, int], Any], place: int, inputs: Layout | Stored) -> Any:
    """An argument of one sample with numbers of its kind, which cuts share where it has the same size.

    What the file has as the kernel reads it is taken as it is: which way a kernel goes may depend on it.
    """
    import tvm

    if isinstance(inputs, np.ndarray):
        return tvm.runtime.tensor(inputs)
    argument = inputs if isinstance(inputs, Layout) else declared(inputs)
    shape = (argument.size,) if isinstance(argument, Constant) else (1, *argument.axes)
    key = place, argument.dtype, int(np.prod(shape))
    if key not in memory:
        values = np.random.default_rng(place).integers(1, 100, shape)
        stored = argument.encoded(values) if isinstance(argument, Layout) else values.astype(argument.dtype)
        memory[key] = tvm.runtime.tensor(stored)
    return memory[key]


def _call(kernel: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], object]:
    return lambda: kernel(*arguments)
