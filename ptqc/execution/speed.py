"""How much faster one model runs than another, with the spread of that figure.

All run in turns, on one thread, in an order drawn anew each time, and the processor's time is counted: it leaves out
what other programs took, though not what they did to the caches. So a round's figure is the ratio of the fastest
quarters of its runs, every round opens the models anew where that is quick (how fast a session is depends on where its
memory lies), and the median of all rounds is told with an interval that is built from their order alone.
"""

import json
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.errors import Interrupted
from ptqc.execution.onnxruntime import Feeds, Runner, session_options
from ptqc.utils.deadline import NEVER, Deadline
from ptqc.utils.scratch import scratch
from ptqc.utils.stopwatch import processor_ns, seconds_of

# How long ONNX Runtime takes for a model, and for each of its nodes, on one thread.
#
# Whole runs are counted in the processor's time, which leaves out what other programs took. Several models take
# turns, so that what slows the processor slows all of them. Of each the fastest quarter of the runs counts, since
# what disturbs a run only ever adds to it.

MARK = re.compile(";([0-9]+);")
# Runs of one model in a row: the first finds the caches full of another model, so it is not among the fastest.
TURN = 6
PROFILE_ROUNDS = (4, 20)
# ONNX Runtime's blocked layout: it names nodes after the value that they make.
BLOCKED, UNBLOCK = "_nchwc", "ReorderOutput"
KERNEL = "_kernel_time"
# Share of the time seen for a node that is left at least when the time of observing it is taken off.
SMALLEST_SHARE = 0.05


@dataclass(frozen=True)
class Subject:
    """A model to time. keys: what the node that makes a value is charged to; settings: entries of the session."""

    model: ir.Model | onnx.ModelProto
    feeds: Feeds
    keys: Mapping[str, Hashable] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def session(self, folder: Path | None = None) -> Runner:
        """A session on one thread; one that writes a profile to `folder` where it is given."""
        options = session_options(threads=1)
        for name, value in self.settings.items():
            options.add_session_config_entry(name, value)
        if folder is None:
            return Runner(self.model, options=options, timed=True)
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
        return Runner(_marked(self.model), options=options, timed=True)


@dataclass(frozen=True)
class Profile:
    """nanoseconds: of a whole run. charges: nanoseconds by key, which add up to the whole. shapes: of what they make.

    transposes: whether the optimizer added any, for kernels whose channels lie last. kernels: what was run for a key.
    """

    nanoseconds: float
    charges: Mapping[Hashable, float]
    shapes: Mapping[Hashable, tuple[int, ...]]
    transposes: bool
    kernels: Mapping[Hashable, str] = field(default_factory=dict)


def latencies(subjects: Sequence[Subject], seconds: float) -> list[float]:
    """Nanoseconds of a run of each model."""
    return _race(subjects, [subject.session() for subject in subjects], seconds)


def profile(subjects: Sequence[Subject], seconds: float) -> list[Profile]:
    """Time models and their nodes, in about so many seconds."""
    with scratch() as folder:
        observed = [subject.session(Path(folder)) for subject in subjects]
        whole = _race([*subjects, *subjects], [*(subject.session() for subject in subjects), *observed], seconds)
        events = [_by_node(kernel_events(Path(runner.session.end_profiling()))) for runner in observed]
    return [_profile(*result) for result in zip(subjects, whole, events, strict=False)]


def undisturbed(times: Sequence[float]) -> float:
    """Mean of the fastest quarter."""
    ordered = sorted(times)
    return float(np.mean(ordered[: (len(ordered) + 3) // 4]))


def take_turns(runs: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Nanoseconds of each, which take turns for about so many seconds."""
    for run in runs:
        run()
    once = sum(map(processor_ns, runs))
    rounds = int(np.clip(seconds * 1e9 / (once * TURN), *PROFILE_ROUNDS))
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, result in zip(runs, times, strict=True):
            result += [processor_ns(run) for _ in range(TURN)]
    return [undisturbed(result) for result in times]


def shares(observed: Sequence[float], whole: float) -> list[float]:
    """Nanoseconds of the parts of a run, which add up to the whole.

    Observing adds the same to each, and what is between parts is the same, too.
    """
    seen = np.array(observed)
    times = np.maximum(seen + (whole - seen.sum()) / len(seen), SMALLEST_SHARE * seen)
    return [float(ns) for ns in times * whole / times.sum()]


def _race(subjects: Sequence[Subject], runners: Sequence[Runner], seconds: float) -> list[float]:
    """Nanoseconds per run of each model."""
    return take_turns(
        [partial(runner.run, subject.feeds) for subject, runner in zip(subjects, runners, strict=True)], seconds
    )


def _marked(model: ir.Model | onnx.ModelProto) -> ir.Model | onnx.ModelProto:
    """A copy whose nodes are named by their places: the optimizer keeps these names within its own."""
    if isinstance(model, ir.Model):
        copy = model.clone()
        for place, node in enumerate(copy.graph):
            node.name = f";{place};"
        return copy
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for place, entry in enumerate(proto.graph.node):
        entry.name = f";{place};"
    return proto


def _first_outputs(model: ir.Model | onnx.ModelProto) -> list[str]:
    """The first value that each node makes."""
    if isinstance(model, ir.Model):
        return [str(node.outputs[0].name) for node in model.graph]
    return [node.output[0] for node in model.graph.node]


@dataclass(frozen=True)
class _Node:
    """An executed node: its name, operator, the shape of what it makes, and its times in nanoseconds."""

    name: str
    op_type: str
    shape: tuple[int, ...]
    times: list[float]

    def key(self, keys: Mapping[str, Hashable], texts: Sequence[str]) -> Hashable | None:
        """What it is charged to; None for one that the optimizer added. texts: by the marked nodes, in their order."""
        mark = MARK.search(self.name)
        return keys.get(texts[int(mark[1])] if mark else self.name.removesuffix(BLOCKED))


def kernel_events(path: Path) -> list[dict[str, Any]]:
    """What ONNX Runtime wrote down of each kernel that a profiled session ran.

    Raises Interrupted where the disk did not take all of it, of which ONNX Runtime says nothing.
    """
    try:
        events = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Interrupted(
            f"ONNX Runtime's profile in {path.parent} is not whole: {error}. Free some space there, or set TMPDIR to "
            "another folder, and run the same command again"
        ) from error
    return [event for event in events if event["cat"] == "Node" and event["name"].endswith(KERNEL)]


def _by_node(events: Sequence[Mapping[str, Any]]) -> list[_Node]:
    """The executed nodes in order. Nodes of subgraphs are part of the node that runs them."""
    nodes: dict[str, _Node] = {}
    end = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] < end:
            continue
        end = event["ts"] + event["dur"]
        name = event["name"].removesuffix(KERNEL)
        node = nodes.setdefault(name, _Node(name, event["args"]["op_name"], _shape(event["args"]), []))
        node.times.append(1e3 * event["dur"])
    return list(nodes.values())


def _shape(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    shapes = [shape for entry in arguments.get("output_type_shape", ()) for shape in entry.values()]
    return tuple(shapes[0]) if shapes else ()


def _profile(subject: Subject, whole: float, nodes: Sequence[_Node]) -> Profile:
    """Charge every node."""
    times = shares([undisturbed(node.times) for node in nodes], whole)
    outputs = _first_outputs(subject.model)
    keys = [node.key(subject.keys, outputs) for node in nodes]
    charges: dict[Hashable, float] = {}
    for taken, key in zip(times, _charged(nodes, keys), strict=True):
        charges[key] = charges.get(key, 0.0) + taken
    shapes = {key: node.shape for node, key in zip(nodes, keys, strict=True) if key is not None}
    added = any(node.op_type == "Transpose" and key is None for node, key in zip(nodes, keys, strict=True))
    kernels = {key: node.op_type for node, key in zip(nodes, keys, strict=True) if key is not None}
    return Profile(whole, charges, shapes, added, kernels)


def _charged(nodes: Sequence[_Node], keys: Sequence[Hashable | None]) -> Iterator[Hashable]:
    """Nodes that the optimizer added go with the one in front, those that undo a layout with the one behind."""
    current = next((key for key in keys if key is not None), None)
    for place, (node, key) in enumerate(zip(nodes, keys, strict=True)):
        current = current if key is None else key
        behind = next((key for key in keys[place + 1 :] if key is not None), current)
        yield behind if node.op_type == UNBLOCK else current


SECONDS, LONGEST = 2.0, 3.0
# Twelve rounds leave one out at either end of the interval; with fewer than eleven, of slow models, it is their range.
ROUNDS, FEWEST_ROUNDS = 12, 6
CONFIDENCE = 0.98

Run = Callable[[], object]
Opener = Callable[[], Run]
# Nanoseconds of one run.
Clock = Callable[[Run], float]


@dataclass(frozen=True)
class Speed:
    """Milliseconds per run on one thread, and the ratio (above 1: the second model is faster) with its interval."""

    float_ms: float
    compiled_ms: float
    ratio: float
    low: float
    high: float
    rounds: int


def compare(first: Subject, second: Subject, deadline: Deadline = NEVER) -> Speed | None:
    """How much faster the second model runs than the first, in about SECONDS; slow models take longer.

    None where there is no time for the fewest rounds.
    """
    openers = [partial(_opened, subject) for subject in (first, second)]
    times = race(openers, processor_ns, deadline)
    return None if times is None else speed_of(times[:, 0], times[:, 1])


def race(openers: Sequence[Opener], clock: Clock, deadline: Deadline = NEVER) -> np.ndarray | None:
    """Nanoseconds per run, (rounds, models), by a clock; None where there is no time for the fewest rounds."""
    times = np.array(list(_rounds(openers, clock, deadline)))
    return times if len(times) else None


def speed_of(first: np.ndarray, second: np.ndarray) -> Speed:
    """From nanoseconds of two models, round by round."""
    ratios = first / second
    return Speed(
        float(np.median(first)) / 1e6,
        float(np.median(second)) / 1e6,
        float(np.median(ratios)),
        *interval(ratios),
        len(ratios),
    )


def _opened(subject: Subject) -> Run:
    return partial(subject.session().run, subject.feeds)


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Two of the values that have the true median between them; with CONFIDENCE where there are enough values.

    P(the median is below the k-th smallest of n) is that of fewer than k heads in n throws (Conover 1999, section 3.2).
    """
    ordered, count = sorted(map(float, values)), len(values)
    left_out = 0
    while 2 * sum(comb(count, heads) for heads in range(left_out + 2)) <= (1 - CONFIDENCE) * 2**count:
        left_out += 1
    return ordered[left_out], ordered[count - 1 - left_out]


def _rounds(openers: Sequence[Opener], clock: Clock, deadline: Deadline) -> Iterator[list[float]]:
    """Nanoseconds per run of each model, round by round."""
    share, began, generator = SECONDS / ROUNDS, time.perf_counter(), np.random.default_rng(0)
    runs = list[Run]()
    opening = 0.0
    for done in range(ROUNDS):
        if done >= FEWEST_ROUNDS and time.perf_counter() - began > LONGEST:
            break
        started = time.perf_counter()
        if not runs or opening < share:
            runs.clear()  # one session of each at a time is enough
            runs += [opener() for opener in openers]
            opening = time.perf_counter() - started
            once = max(seconds_of(run) for run in runs)
            if not done and not deadline.leaves(FEWEST_ROUNDS * len(runs) * once):
                return
        turn = max(1, min(TURN, int(share / once / len(runs))))
        yield _round(runs, turn, started + share, generator, clock)


def _round(runs: Sequence[Run], turn: int, end: float, generator: np.random.Generator, clock: Clock) -> list[float]:
    """Nanoseconds per run of each model, undisturbed, from turns until a time on the performance counter."""
    times: list[list[float]] = [[] for _ in runs]
    while not times[0] or time.perf_counter() < end:
        for place in generator.permutation(len(runs)):
            times[place] += [clock(runs[place]) for _ in range(turn)]
    return [undisturbed(turns) for turns in times]
