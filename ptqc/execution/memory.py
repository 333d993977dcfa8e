"""How much memory ONNX Runtime's allocator gives to one run of a model, read from the profile of its first run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptqc.execution.speed import Subject, kernel_events
from ptqc.utils.scratch import scratch

# What the allocator holds behind a node, how much of that came with the node, and the most it held so far.
HELD, ADDED, MOST = "mem_bytes_in_use", "mem_in_use_delta", "mem_in_use_peak"


def run_bytes(subject: Subject) -> int | None:
    """Bytes that a run on one thread has at most beside the weights, of kernels while they run too.

    Inputs belong to the caller. Where loading took more for a while, that is what is told. None where this release of
    ONNX Runtime does not tell.
    """
    with scratch() as folder:
        runner = subject.session(Path(folder))
        runner.run(subject.feeds)
        nodes = [event["args"] for event in kernel_events(Path(runner.session.end_profiling()))]
    return _most(nodes)


def _most(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    result = [node for node in nodes if {HELD, ADDED, MOST} <= node.keys()]
    if not result:
        return None
    before = int(result[0][HELD]) - int(result[0][ADDED])
    return max(0, max(int(node[MOST]) for node in result) - before)
