"""Jobs for the simulation: of a compile that was traced, and of a model of which only the shapes are known."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ptqc.passes.quantize.measure_sensitivity import SAMPLED_WEIGHTS
from ptqc.passes.quantize.moment_stream import SMALL_BLOCK_BYTES, grouped
from ptqc.passes.quantize.moments import bytes_of
from scaling.simulation import Block, Job, Unit
from scaling.tracing import SOLVING, Trace, UnitTimes

MEASURING, RECONSTRUCTING = "measure sensitivity", "reconstruct"
# Reconstructions at a time.
DRAWS = 2
FLOAT_BYTES = 4
# Codes are stored a byte each, scales apart.
CODE_BYTES = 1


@dataclass(frozen=True)
class Matrix:
    """A weight of a model: outputs and inputs. One that no layer multiplies with has its numbers and 0 instead."""

    channels: int
    width: int

    @property
    def size(self) -> int:
        """Its numbers."""
        return self.channels * (self.width or 1)

    @property
    def moments(self) -> int:
        """Bytes of the second moments of its inputs on one split."""
        return bytes_of(1, self.width) if self.width else 0

    @property
    def problem(self) -> int:
        """Bytes of what is sent: its numbers, and second moments to fit to and to judge by."""
        return FLOAT_BYTES * self.size + 2 * self.moments


@dataclass(frozen=True)
class Data:
    """Calibration data. tokens: in all; length: of a sequence."""

    tokens: int
    length: int


@dataclass(frozen=True)
class Costs:
    """Seconds of a processor.

    solve: of a weight, by the inputs of its layer: of any, and of each output more. make: of a byte of second moments,
    until the problem is made. send: of a byte of a problem or a result on its way to or from the store. observe: of a
    number of a weight and a token, until its moments are known. keep: of a number, until its result is stored. before,
    behind: of a number of the model, for what comes before all that and behind it. measure: of a number of the model,
    for each run and each token of a sequence; see `measuring_runs`. reconstruct: of a second of solving. spread:
    standard deviation of the logarithm of solving times.
    """

    solve: Mapping[int, tuple[float, float]]
    make: float
    send: float
    observe: float
    keep: float
    before: float
    behind: float
    measure: float
    reconstruct: float
    spread: float = 0.0

    def unit(self, matrix: Matrix, *, is_sent: bool) -> Unit:
        """The problem of a weight. is_sent: whether it is solved elsewhere. Raises KeyError for an unknown width."""
        fixed, each = self.solve[matrix.width]
        result = CODE_BYTES * matrix.size
        on_its_way = self.send * (matrix.problem + result) if is_sent else 0.0
        return Unit(
            make=self.make * matrix.moments + on_its_way,
            solve=fixed + each * matrix.channels,
            problem=matrix.problem if is_sent else 0,
            result=result if is_sent else 0,
            keep=self.keep * matrix.size,
        )


def job_of(
    matrices: Sequence[Matrix],
    costs: Costs,
    data: Data,
    processors: int,
    *,
    is_sent: bool,
    room: int = SMALL_BLOCK_BYTES,
) -> Job:
    """The compile of a model beyond memory.

    processors: of the machine of the compile, which all run the model; draws of the reconstruction take one each.
    is_sent: whether weights are solved elsewhere. room: bytes for the second moments of a block.
    """
    named = {str(number): matrix for number, matrix in enumerate(matrices)}
    together = grouped(((name, name, 2 * matrix.moments) for name, matrix in named.items()), room)
    observe = costs.observe * data.tokens / processors
    blocks = (
        Block(
            observe * sum(named[name].size for name in names),
            tuple(costs.unit(named[name], is_sent=is_sent) for name in names),
        )
        for names in together
    )
    after = sum(behind_all(matrices, costs, data, processors).values())
    return Job(costs.before * numbers_of(matrices), tuple(blocks), after)


def behind_all(matrices: Sequence[Matrix], costs: Costs, data: Data, processors: int) -> dict[str, float]:
    """Seconds that stages behind the solved weights take, by their names."""
    numbers, runs = numbers_of(matrices), measuring_runs(len(matrices))
    solving = sum(costs.unit(matrix, is_sent=False).solve for matrix in matrices)
    return {
        MEASURING: costs.measure * numbers * runs * data.length / processors,
        RECONSTRUCTING: costs.reconstruct * solving / min(DRAWS, processors),
        "all else": costs.behind * numbers,
    }


def measuring_runs(weights: int) -> float:
    """Runs of a model beyond memory while it is measured, if each weight has one format.

    It runs once whole and once node by node, and from behind each weight that is measured, half of it on average.
    """
    return 2 + len(range(0, weights, math.ceil(weights / SAMPLED_WEIGHTS))) / 2


def numbers_of(matrices: Iterable[Matrix]) -> int:
    """Of all of them."""
    return sum(matrix.size for matrix in matrices)


def traced_blocks(trace: Trace) -> list[list[UnitTimes]]:
    """The units of a trace in blocks."""
    units = {unit.label: unit for unit in sorted(trace.units, key=lambda unit: unit.number)}
    together = grouped(
        ((name, unit.reads or name, 2 * unit.moments) for name, unit in units.items()), SMALL_BLOCK_BYTES
    )
    return [[units[name] for name in names] for names in together]


def observing(trace: Trace) -> float:
    """Seconds of a processor in which second moments were observed."""
    units = sum(unit.make + unit.solve for unit in trace.units)
    return max(0.0, trace.stage(SOLVING).processor - units - trace.keeping)


def measured_solving(trace: Trace, processors: int) -> float:
    """Seconds that solving took without other work on the machine, by the seconds of a processor of each thread.

    A block takes as long as the thread that did the most for it; observing is shared by the processors. Results are
    stored while others are solved, but for the last of a block, or where there is one thread only.
    """
    blocks = traced_blocks(trace)
    exposed = 1.0 if trace.workers == 1 else len(blocks) / len(trace.units)
    total = trace.keeping * exposed + observing(trace) / processors
    for block in blocks:
        threads = defaultdict[int, float](float)
        for unit in block:
            threads[unit.thread] += unit.make + unit.solve
        total += max(threads.values())
    return total


def matrices_of(trace: Trace) -> list[Matrix]:
    """The weights that a traced compile solved, in their order."""
    return [Matrix(unit.channels, unit.width) for unit in sorted(trace.units, key=lambda unit: unit.number)]


def costs_of(traces: Sequence[Trace], sent: Sequence[Trace] = (), probes: Sequence[UnitTimes] = ()) -> Costs:
    """What compiles took, by what it grows with. traces: in threads; sent: with another executor.

    probes: more units, as of widths that no trace has.
    """
    units = [unit for trace in traces for unit in trace.units]
    by_width = _by_width([*units, *probes])
    whole = [trace for trace in traces if trace.is_whole]
    elsewhere = [unit for trace in sent for unit in trace.units]
    measured, reconstructed = (sum(t.stage(name).processor for t in whole) for name in (MEASURING, RECONSTRUCTING))
    return Costs(
        solve={width: line(some) for width, some in by_width.items()},
        make=_ratio(sum(unit.make for unit in units), sum(unit.moments for unit in units)),
        send=_ratio(sum(unit.solve for unit in elsewhere), sum(unit.problem + unit.result for unit in elsewhere)),
        observe=_ratio(sum(map(observing, traces)), sum(_solved(trace) * trace.tokens for trace in traces)),
        keep=_ratio(sum(trace.keeping for trace in traces), sum(map(_solved, traces))),
        before=_ratio(sum(trace.stage(SOLVING).before for trace in traces), sum(trace.numbers for trace in traces)),
        behind=_ratio(sum(map(behind, whole)), sum(trace.numbers for trace in whole)),
        measure=_ratio(measured, sum(trace.numbers * _runs(trace) * trace.length for trace in whole)),
        reconstruct=_ratio(reconstructed, sum(unit.solve for trace in whole for unit in trace.units)),
        spread=spread_of(units),
    )


def _solved(trace: Trace) -> int:
    return sum(unit.size for unit in trace.units)


def _runs(trace: Trace) -> float:
    return measuring_runs(len(trace.units))


def behind(trace: Trace) -> float:
    """Seconds of a processor behind the solved weights but for measuring and reconstructing."""
    solving = trace.stage(SOLVING)
    others = sum(trace.stage(name).processor for name in (MEASURING, RECONSTRUCTING))
    return trace.processor - solving.before - solving.processor - others


def _ratio(seconds: float, of: float) -> float:
    return seconds / of if of else 0.0


def _by_width(units: Iterable[UnitTimes]) -> Mapping[int, list[UnitTimes]]:
    by_width = defaultdict[int, list[UnitTimes]](list)
    for unit in units:
        by_width[unit.width].append(unit)
    return by_width


def line(units: Sequence[UnitTimes]) -> tuple[float, float]:
    """Seconds of solving a weight, and of each output more: least squares relative to each time."""
    outputs = np.array([unit.channels for unit in units], float)
    seconds = np.array([unit.solve for unit in units])
    if len(set(outputs)) < 2:
        return float(seconds.mean()), 0.0
    terms = np.stack([np.ones_like(outputs), outputs], 1) / seconds[:, None]
    fixed, each = np.linalg.lstsq(terms, np.ones_like(seconds), rcond=None)[0]
    return float(fixed), float(each)


def spread_of(units: Iterable[UnitTimes]) -> float:
    """Standard deviation of the logarithm of the times of units of one shape."""
    shapes = defaultdict[tuple[int, int], list[float]](list)
    for unit in units:
        shapes[unit.width, unit.channels].append(float(np.log(unit.solve)))
    several = [np.array(logs) for logs in shapes.values() if len(logs) > 1]
    if not several:
        return 0.0
    squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in several)
    return float(np.sqrt(squares / sum(len(logs) - 1 for logs in several)))
