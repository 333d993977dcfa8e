"""How long each kernel of an artifact's native library takes on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ptqc.artifact.bisect import read_kernels, seen_inputs
from ptqc.artifact.folder import load
from ptqc.artifact.names import OwnNames
from ptqc.codegen.program.inputs import edges
from ptqc.codegen.program.listing import Call, Listing
from ptqc.codegen.program.memory import size
from ptqc.codegen.program.timing import prepared_calls
from ptqc.codegen.program.verify import Loaded
from ptqc.runtime.interface import KERNELS
from ptqc.runtime.lengths import at
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.stopwatch import seconds_of
from ptqc.utils.text import shorten, table, visible

ROUNDS = 20
NAME = 48


@dataclass(frozen=True)
class Timing:
    """One kernel: seconds, products and sums, and bytes of values that it reads and writes.

    name: the module of the model that computes the value, or what the model calls it.
    """

    call: Call
    name: str
    seconds: float
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """One entry of `--json`."""
        return {
            "name": self.name,
            "value": self.call.value,
            "kernel": self.call.family,
            "microseconds": 1e6 * self.seconds,
            "operations": self.call.operations,
            "bytes": self.bytes,
        }

    @property
    def row(self) -> tuple[str, ...]:
        """What, microseconds, 10⁹ operations and bytes per second."""
        speed = f"{self.call.operations / self.seconds / 1e9:,.0f}" if self.call.operations else ""
        moved = f"{self.bytes / self.seconds / 1e9:,.1f}"
        return shorten(visible(self.name), NAME), self.call.family, f"{1e6 * self.seconds:,.1f}", speed, moved


@dataclass(frozen=True)
class Bench:
    """All kernels in order, and seconds of a whole run. Each is the fastest of several rounds."""

    timings: Sequence[Timing]
    seconds: float
    threads: int
    isa: str

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: microseconds of each kernel, milliseconds of the whole."""
        return {
            "runtime": f"native library, {self.isa}",
            "threads": self.threads,
            "milliseconds": 1e3 * self.seconds,
            "kernels": [timing.to_json() for timing in self.timings],
        }

    def __str__(self) -> str:
        total = sum(timing.seconds for timing in self.timings)
        slowest = sorted(self.timings, key=lambda timing: -timing.seconds)
        rows = [(*timing.row, f"{100 * timing.seconds / total:.1f}") for timing in slowest]
        heading = ("value", "kernel", "µs", "GOP/s", "GB/s", "% of time")
        return (
            f"{table(heading, rows)}\n\n{len(rows)} kernels take {1e3 * total:.3f} ms, "
            f"a whole run {1e3 * self.seconds:.3f} ms, with {self.threads} threads of the library for {self.isa}; "
            f"the fastest of {ROUNDS} rounds"
        )


@quiet_libraries()
def bench(folder: str | PathLike[str], *, threads: int = 1, rounds: int = ROUNDS, isa: str = "") -> Bench:
    """Time every kernel of an artifact's native library, and the whole, on one random sample.

    isa: an instruction set of the artifact's, in place of the best one. The kernels take turns, so that each finds the
    caches as in a run. Raises TargetError when the artifact has no library that runs here.
    """
    artifact = load(folder)
    library = artifact.native(threads, isa)
    document = read_kernels(artifact.folder / artifact.runnable / KERNELS)
    loaded = Loaded(Listing.from_json(document["libraries"][library.isa]), library)
    feeds = dict(edges(seen_inputs(document)))["random"]
    loaded = loaded.bound(feeds)
    runs = prepared_calls(loaded, feeds)
    fastest = _fastest([*runs, lambda: library.run(feeds)], rounds)
    layouts, names = loaded.listing.layouts, OwnNames.of(artifact, document)
    timings = [
        Timing(
            call,
            names.label(names.of_kernel(call.value)),
            seconds,
            sum(at(size(layouts[name]), loaded.listing.lengths) for name in (*call.inputs, call.output)),
        )
        for call, seconds in zip(loaded.listing.calls, fastest, strict=False)
    ]
    return Bench(timings, fastest[-1], library.threads, library.isa)


def _fastest(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    times = [[seconds_of(run) for run in runs] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]
