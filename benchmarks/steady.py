"""Whether the speed that a compile tells is the same on a busy machine: an artifact timed again and again.

python benchmarks/steady.py MODEL ARTIFACT [--times 20] [--busy 0,1,2,3,4] [--out results.json]

MODEL is the float file, ARTIFACT the folder that it was compiled into. They are timed so often beside each number of
busy processes. What is told is wrong where its whole interval lies on the other side of 1 than the median of all that
was measured beside the fewest; then the command ends with 1.
"""

import contextlib
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
from harness import Column, number

from ptqc.execution.speed import Speed, Subject, compare

# What a busy process sorts: more than the caches hold, so that it disturbs them, too.
NUMBERS = 2**22
COLUMNS = (
    Column("busy processes", "busy"),
    Column("least ratio", "least", number(3)),
    Column("median ratio", "median", number(3)),
    Column("largest ratio", "largest", number(3)),
    Column("median width of the interval", "width", number(3)),
    Column("too busy to say", "unsaid"),
    Column("wrong", "wrong"),
)


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_sort_for_ever, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _sort_for_ever() -> None:
    numbers = np.random.default_rng(0).random(NUMBERS)
    while True:
        np.sort(numbers)


def judged(speeds: Sequence[Speed], truth: float) -> dict[str, Any]:
    """A row of what was told, given the ratio that is taken for true."""
    ratios = [speed.ratio for speed in speeds]
    return {
        "least": min(ratios),
        "median": statistics.median(ratios),
        "largest": max(ratios),
        "width": statistics.median(speed.high - speed.low for speed in speeds),
        "unsaid": sum(speed.low <= 1 <= speed.high for speed in speeds),
        "wrong": sum(speed.low > 1 > truth or speed.high < 1 < truth for speed in speeds),
    }


def _subjects(model: Path, artifact: Path) -> tuple[Subject, Subject]:
    files = onnx.load(model), onnx.load(artifact / "model.onnx")
    random, feeds = np.random.default_rng(0), {}
    for value in files[0].graph.input:
        shape = [axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.random(shape).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
    return Subject(files[0], feeds), Subject(files[1], feeds)


def main() -> None:
    """Time, print a table, and tell by the exit status whether anything wrong was said."""
    parser = harness.command_line(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", default="0,1,2,3,4")
    asked = parser.parse_args()
    subjects = _subjects(asked.model, asked.artifact)
    speeds: dict[int, list[Speed]] = {}
    for count in sorted(map(int, asked.busy.split(","))):
        with beside(count):
            speeds[count] = [speed for _ in range(asked.times) if (speed := compare(*subjects)) is not None]
    truth = statistics.median(speed.ratio for speed in speeds[min(speeds)])
    rows = [{"busy": busy, **judged(several, truth)} for busy, several in speeds.items()]
    facts = {
        **harness.machine(),
        "model": asked.model.name,
        "speeds": {n: [*map(asdict, s)] for n, s in speeds.items()},
    }
    harness.write_results(asked.out, rows, facts)
    print(harness.markdown(rows, COLUMNS))
    if any(row["wrong"] for row in rows):
        sys.exit("a speed was told that is on the wrong side of 1 by more than its own spread")


if __name__ == "__main__":
    main()
