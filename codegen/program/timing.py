"""How long libraries take on this machine, whole and call by call: one sample on one thread, all taking turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from ptqc.codegen.program.listing import Listing
from ptqc.codegen.program.verify import Loaded, Values
from ptqc.execution.speed import TURN, shares, take_turns, undisturbed
from ptqc.utils.stopwatch import seconds_of

# Rounds in which every call of each library is timed as often as a whole run in one of its turns.
ROUNDS = 12
NANOSECONDS = 1e9


@dataclass(frozen=True)
class TimedCall:
    """One call of a kernel, as `ptqc.codegen.program.listing.Call` has it."""

    inputs: tuple[str, ...]
    output: str
    value: str
    nanoseconds: float


@dataclass(frozen=True)
class TimedProgram:
    """A library. nanoseconds: of a whole run, which those of its calls add up to."""

    nanoseconds: float
    calls: tuple[TimedCall, ...]

    @classmethod
    def of(cls, listing: Listing, whole: float, observed: Sequence[float]) -> Self:
        """A library whose calls were observed one by one."""
        parts = zip(listing.calls, shares(observed, whole), strict=True)
        return cls(whole, tuple(TimedCall(call.inputs, call.output, call.value, ns) for call, ns in parts))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        calls = (TimedCall(**{**entry, "inputs": tuple(entry["inputs"])}) for entry in document["calls"])
        return cls(float(document["nanoseconds"]), tuple(calls))

    def to_json(self) -> dict[str, Any]:
        """The document for another process."""
        return asdict(self)


def time_libraries(libraries: Sequence[Loaded], feeds: Values, seconds: float) -> list[TimedProgram]:
    """Time libraries of one thread on the inputs of one model; the whole runs in about so many seconds."""
    calls = [prepared_calls(loaded, feeds) for loaded in libraries]
    times: list[list[list[float]]] = [[[] for _ in runs] for runs in calls]
    for _ in range(ROUNDS):
        for runs, result in zip(calls, times, strict=True):
            for _ in range(TURN):
                for run, column in zip(runs, result, strict=True):
                    column.append(NANOSECONDS * seconds_of(run))
    whole = take_turns([_whole(loaded, feeds) for loaded in libraries], seconds)
    return [
        TimedProgram.of(loaded.listing, taken, [undisturbed(column) for column in result])
        for loaded, taken, result in zip(libraries, whole, times, strict=True)
    ]


def prepared_calls(loaded: Loaded, feeds: Values) -> list[Callable[[], object]]:
    """Each call on buffers of its own values: what lies in them does not change how long it takes."""
    loaded = loaded.bound(feeds)
    listing, samples = loaded.listing, loaded.samples(feeds)
    buffers = {name: loaded.buffer(name, feeds[name]) for name in listing.inputs}
    for call in reversed(listing.calls):  # what a value is placed in comes after it
        layout = listing.layouts[call.output]
        if call.output not in buffers:
            buffers[call.output] = loaded.buffer(call.output, np.zeros((samples, *layout.shape), layout.dtype))
        buffers |= dict.fromkeys(call.placed, buffers[call.output])
    return [loaded.prepared(call, buffers) for call in listing.calls]


def _whole(loaded: Loaded, feeds: Values) -> Callable[[], object]:
    inputs = {name: feeds[name] for name in loaded.listing.inputs}
    return lambda: loaded.library.run(inputs)
