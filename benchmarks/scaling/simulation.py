"""A compile on workers, simulated event by event: block after block of weights, each of them solved by whoever is free.

A block is observed by the compile's own process, which then makes problems, one at a time; each goes to the store, from
there to a worker, and its result back. The next block begins when all results of the last one are kept. What else a
compile does comes before and behind, in its own process.
"""

import heapq
import itertools
import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Unit:
    """A problem. make: seconds of the compile's process, when no other problem is made; solve: of a worker.

    problem, result: bytes that go to the store and back. keep: seconds of the compile's process for the result.
    """

    make: float
    solve: float
    problem: int = 0
    result: int = 0
    keep: float = 0.0


@dataclass(frozen=True)
class Block:
    """Units whose second moments are in memory at a time. observe: seconds until they are."""

    observe: float
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Job:
    """A compile. before, after: seconds of its own process ahead of the first block and behind the last."""

    before: float
    blocks: tuple[Block, ...]
    after: float


@dataclass(frozen=True)
class Cluster:
    """Who solves. workers: at a time, of all machines together.

    rate: bytes a second between the store and all who read or write it together; infinite where nothing is written.
    makes_alone: whether problems are made one at a time. spread: standard deviation of the logarithm of a unit's time,
    whose mean stays. lifetime: mean seconds until a worker is lost, exponentially distributed; repair: from then until
    another one begins with its problem.
    """

    workers: int
    rate: float = math.inf
    makes_alone: bool = True
    spread: float = 0.0
    lifetime: float = math.inf
    repair: float = 30.0
    seed: int = 0


@dataclass(frozen=True)
class Simulated:
    """seconds: of the whole; solving: of the blocks, observing included; busy: share of the workers' time in them that
    went into solving; lost: attempts that were repeated.
    """

    seconds: float
    solving: float
    busy: float
    lost: int


@dataclass
class Line:
    """Serves one at a time, in the order in which they come. free: when the last one is done."""

    free: float = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """When somebody who comes now is done."""
        self.free = max(self.free, now) + seconds
        return self.free


# Who serves, or None, and for how many seconds; a process is told when that is done.
Step = tuple[Line | None, float]
Process = Generator[Step, float, None]


def run(processes: Iterable[Process], start: float) -> float:
    """When the last of processes that begin together is done."""
    waiting, number = list[tuple[float, int, Process]](), itertools.count()
    now = start

    def begin(process: Process, step: Step) -> None:
        line, seconds = step
        done = now + seconds if line is None else line.serve(now, seconds)
        heapq.heappush(waiting, (done, next(number), process))

    for process in processes:
        if (first := next(process, None)) is not None:
            begin(process, first)
    while waiting:
        now, _, process = heapq.heappop(waiting)
        with suppress(StopIteration):
            begin(process, process.send(now))
    return now


@dataclass
class _Chance:
    """What happens by chance. lost: attempts so far; solved: seconds of workers that led to a result."""

    cluster: Cluster
    random: np.random.Generator
    lost: int = 0
    solved: float = 0.0

    def attempts(self, unit: Unit) -> Iterator[float]:
        """Seconds of each attempt; of one that is lost, with those until the next one."""
        spread = self.cluster.spread
        while True:
            seconds = unit.solve * math.exp(spread * self.random.standard_normal() - spread**2 / 2)
            left = self.random.exponential() * self.cluster.lifetime
            if left >= seconds:
                self.solved += seconds
                yield seconds
                return
            self.lost += 1
            yield left + self.cluster.repair


def simulate(job: Job, cluster: Cluster) -> Simulated:
    """How long the compile takes."""
    chance = _Chance(cluster, np.random.default_rng(cluster.seed))
    now = job.before
    for block in job.blocks:
        now = _solved(block, cluster, chance, now + block.observe)
    solving = now - job.before
    return Simulated(now + job.after, solving, chance.solved / (cluster.workers * solving or 1.0), chance.lost)


def _solved(block: Block, cluster: Cluster, chance: _Chance, start: float) -> float:
    """When all results of a block are kept, which is done in their order; a single thread that asks does it itself."""
    making, link = Line(), Line()
    left, arrived = iter(enumerate(block.units)), dict[int, float]()

    def ask() -> Process:
        """One of the threads that ask, each of which has a worker."""
        for number, unit in left:
            yield making if cluster.makes_alone else None, unit.make
            yield link, unit.problem / cluster.rate
            for seconds in chance.attempts(unit):
                yield None, seconds
            arrived[number] = yield link, unit.result / cluster.rate
            if cluster.workers == 1:
                yield None, unit.keep

    finished = run([ask() for _ in range(cluster.workers)], start)
    if cluster.workers == 1:
        return finished
    finished = start
    for number, unit in enumerate(block.units):
        finished = max(finished, arrived[number]) + unit.keep
    return finished
