"""What the stages and units of a real compile take, in seconds of the processor: other work does not change these much.

A unit is one weight that is solved. Its time in the compile's own process is told apart from that of solving it.
"""

import itertools
import json
import math
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import onnx

from ptqc.budget import parse_budgets
from ptqc.compiler import CompileRequest, compile_model
from ptqc.options import CompileOptions
from ptqc.passes.quantize.moments import bytes_of
from ptqc.passes.quantize.solve_weights import FormatSolutions, WeightProblem
from ptqc.utils.executors.base import Executor, Result, UnitOfWork
from ptqc.utils.executors.registry import executor_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import Lines, Stage
from ptqc.utils.store import Store, store_at

SOLVING = "solve weights"


@dataclass(frozen=True)
class UnitTimes:
    """A weight that was solved. number: its place in the order in which units began, from 0.

    channels, width: of the layer that it is fitted to; where there is none, its numbers, and 0. size: its numbers.
    moments: bytes of its second moments on one split. problem, result: bytes. make: seconds of the processor until the
    problem is in memory; solve: behind that, in the thread that asked, which is solving it only with the executor
    threads. thread: which that was. reads: what it is multiplied with; units of which this is equal, and not empty,
    share their second moments.
    """

    number: int
    label: str
    channels: int
    width: int
    size: int
    forms: int
    moments: int
    problem: int
    result: int
    make: float
    solve: float
    thread: int = 0
    reads: str = ""


@dataclass(frozen=True)
class StageTimes:
    """seconds: of the clock; processor: of all threads and ended processes; before: of those, until the stage began."""

    name: str
    seconds: float
    processor: float
    before: float


@dataclass
class Trace:
    """A compile, or what there was of it. numbers: of all weights; those that an earlier compile solved are no units.

    tokens, length: of the calibration data, and of a sequence of it.
    keeping: seconds of the processor that solved weights took on their way to the store. seconds, processor: of the
    whole compile; is_whole: whether it came to its end.
    """

    model: str
    executor: str
    workers: int
    numbers: int
    tokens: int
    length: int
    stages: list[StageTimes] = field(default_factory=list)
    units: list[UnitTimes] = field(default_factory=list)
    keeping: float = 0.0
    seconds: float = 0.0
    processor: float = 0.0
    is_whole: bool = False

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        stages = [StageTimes(**stage) for stage in document["stages"]]
        units = [UnitTimes(**unit) for unit in document["units"]]
        return cls(**{**document, "stages": stages, "units": units})

    def to_json(self) -> dict[str, Any]:
        """The document that is kept."""
        return asdict(self)

    def stage(self, name: str) -> StageTimes:
        """All stages of a name together."""
        stages = [stage for stage in self.stages if stage.name == name]
        seconds, processor = (sum(getattr(stage, which) for stage in stages) for which in ("seconds", "processor"))
        return StageTimes(name, seconds, processor, stages[0].before if stages else 0.0)


def processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class TracedExecutor(Executor):
    """Another executor, whose units are timed."""

    name: ClassVar[str] = "traced"

    def __init__(self, inner: Executor, trace: Trace) -> None:
        self._inner, self._trace, self.is_here = inner, trace, inner.is_here
        self._advanced, self._numbers = 0.0, itertools.count()

    @classmethod
    def of(cls, store: Store, workers: int, address: str = "") -> Self:
        """Is made of another executor instead."""
        raise NotImplementedError

    @property
    def workers(self) -> int:
        """Those of the other one."""
        return self._inner.workers

    def solve(self, label: str, make: Callable[[], UnitOfWork[Result]]) -> Result:
        """The result of the other one."""
        units = list[tuple[UnitOfWork[Result], float]]()
        number, began = next(self._numbers), time.thread_time()

        def timed() -> UnitOfWork[Result]:
            unit = make()
            units.append((unit, time.thread_time()))
            return unit

        result = self._inner.solve(label, timed)
        ended = time.thread_time()
        unit, ready = units[0]
        if isinstance(unit, WeightProblem):
            size = _bytes(type(unit).pack_result(cast(FormatSolutions, result)))
            self._trace.units.append(_unit(number, label, unit, size, ready - began, ended - ready))
        return result

    def advanced(self) -> None:
        """Called when a result was taken; the next `settle` ends what is done with it."""
        self._advanced = time.thread_time()

    def settle(self, labels: Iterable[str]) -> None:
        """Also notes how long the results took on their way to the store."""
        self._inner.settle(labels)
        self._trace.keeping += time.thread_time() - self._advanced

    def close(self) -> None:
        """Close the other one."""
        self._inner.close()


def _unit(number: int, label: str, unit: WeightProblem, result: int, make: float, solve: float) -> UnitTimes:
    layer = unit.layer
    return UnitTimes(
        number=number,
        label=label,
        channels=layer.channels if layer else unit.values.size,
        width=layer.width if layer else 0,
        size=unit.values.size,
        forms=len(unit.forms),
        moments=bytes_of(layer.groups, layer.width) if layer else 0,
        problem=_bytes(unit.pack()),
        result=result,
        make=make,
        solve=solve,
        thread=threading.get_ident(),
        reads=str(layer.reading) if layer else "",
    )


def _bytes(packed: Any) -> int:
    return sum(array.nbytes for array in packed[1].values())


class _TracedStage:
    def __init__(self, inner: Stage, then: Callable[[], None]) -> None:
        self._inner, self._then = inner, then

    def advance(self, label: str = "", steps: int = 1) -> None:
        """Pass it on."""
        self._inner.advance(label, steps)
        self._then()


class AllSolved(Exception):
    """Ends a compile of which no more is asked."""


class TracedProgress(Lines):
    """Lines of progress, and what each stage took. until: the stage behind which AllSolved is raised."""

    def __init__(self, trace: Trace, executor: TracedExecutor, until: str = "") -> None:
        super().__init__()
        self._trace, self._executor, self._until, self._began = trace, executor, until, processor_seconds()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Time it."""
        then = self._executor.advanced if name == SOLVING else lambda: None
        began, before = time.monotonic(), processor_seconds()
        with super().stage(name, total) as stage:
            yield _TracedStage(stage, then)
        took = time.monotonic() - began, processor_seconds() - before
        self._trace.stages.append(StageTimes(name, *took, before - self._began))
        if name == self._until:
            raise AllSolved


def numbers_of(model: Path) -> int:
    """Elements of all matrices of a file."""
    graph = onnx.load(model, load_external_data=False).graph
    return sum(math.prod(tensor.dims) for tensor in graph.initializer if len(tensor.dims) > 1)


@quiet_libraries()
def trace_compile(
    model: Path,
    calibration: Path,
    place: Path,
    budget: str,
    executor: str,
    workers: int,
    out: Path,
    until: str = "",
    **compile_options: Any,
) -> None:
    """Compile into a folder, where the store is too, and write what it took; that of one that failed, too.

    calibration: tokens (samples, length). executor, workers: see `ptqc.utils.executors`. until: the last stage; empty:
    all. compile_options: fields of `ptqc.options.CompileOptions`.
    """
    store = store_at(place / "cache")
    inner = executor_of(executor, workers, store)
    with np.load(calibration) as arrays:
        (tokens,) = arrays.values()
    trace = Trace(model.stem, inner.name, inner.workers, numbers_of(model), tokens.size, tokens.shape[1])
    traced = TracedExecutor(inner, trace)
    began, before = time.monotonic(), processor_seconds()
    request = CompileRequest(
        options=CompileOptions.of(compile_options),
        budgets=parse_budgets(budget),
        output=place / "out",
        force=True,
        target=None,
        labels=None,
        own_score=None,
        preprocessing=None,
        store=store,
        progress=TracedProgress(trace, traced, until),
        started=began,
        executor=traced,
    )
    try:
        with suppress(AllSolved):
            compile_model(model, calibration, request)
            trace.is_whole = True
    finally:
        trace.seconds, trace.processor = time.monotonic() - began, processor_seconds() - before
        out.write_text(json.dumps(trace.to_json(), indent=1))
