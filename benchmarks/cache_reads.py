"""Products of one token's queries with keys and values of a cache, by its form: time and bytes read.

python benchmarks/cache_reads.py [--size 100m] [--past 512,2048] [--blocks 25] [--out results.json]

Heads are those of one layer of `models/random_llama.py`. A token multiplies its queries with all keys, and shares with
all values; each kernel of the library is called by itself. Told is processor time of the thread: medians over blocks in
which all take turns, and the ratio to float32 within rounds. numpy: float32 in NumPy's product, head by head.
"""

import argparse
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import latency
import numpy as np
from decode import processor_time
from harness import ROOT, Column, in_child, number

sys.path.append(str(ROOT / "models"))

import random_llama

FLOAT, FORMS = "float32", ("float32", "float16", "int8", "int4")
COLUMNS = (
    Column("past", "past"),
    Column("caches", "form"),
    Column("bytes", "bytes", number(0)),
    Column("µs", "microseconds", number(1)),
    Column("GB/s", "gigabytes", number(1)),
    Column("of float32", "of_float", number(2)),
    Column("note", "note"),
)


def raced(size: str, past: int, blocks: int, seconds: float) -> dict[str, Any]:
    """Milliseconds by form, a list over blocks, and bytes. Runs in a child."""
    from ptqc.codegen.cpu import isa, worker
    from ptqc.codegen.kernels.families import kv_attention
    from ptqc.codegen.kernels.writing import PROCESSOR
    from ptqc.codegen.program.layout import Layout
    from ptqc.codegen.program.listing import Listing
    from ptqc.codegen.program.program import Program, ProgramStep
    from ptqc.codegen.program.verify import Loaded
    from ptqc.kv_cache.known import FIXED
    from ptqc.runtime.library import Library, aligned

    shape, random = random_llama.SHAPES[size], np.random.default_rng(0)
    chosen = isa.several("host")[0]
    real = [random.standard_normal((1, shape.shared, past, shape.head), np.float32) for _ in range(2)]
    queries = random.standard_normal((1, shape.heads, 1, shape.head), np.float32)
    shares = random.standard_normal((1, shape.heads, 1, past), np.float32)
    rows = {
        "int8": lambda parts: kv_attention.CodedRows(parts, 128),
        "int4": lambda parts: kv_attention.PairedRows(parts, 8),
    }

    def layout(array: np.ndarray) -> Layout:
        return Layout(array.shape[1:], str(array.dtype), row_major=True)

    steps: list[ProgramStep] = []
    layouts: dict[str, Layout] = {}
    values: dict[str, np.ndarray] = {}
    for form in FORMS:
        for which, left, cache, outputs in (("k", queries, real[0], past), ("v", shares, real[1], shape.head)):
            parts = FIXED[form].pack(cache) if form in FIXED else (cache,)
            operands = {f"{form}_{which}_x": left, **{f"{form}_{which}_{i}": part for i, part in enumerate(parts)}}
            stored = tuple(layout(part) for part in parts)
            places = kv_attention.Places(rows[form](stored) if form in rows else kv_attention.RealRows(stored), None)
            y = Layout((shape.heads, 1, outputs), FLOAT, row_major=True)
            write = kv_attention.scores if which == "k" else kv_attention.mixed
            name = f"{form}_{which}"
            layouts |= {name: y, **{other: layout(array) for other, array in operands.items()}}
            values |= operands
            kernel = write(layout(left), places, y, chosen).compile(PROCESSOR)
            steps.append(ProgramStep(kernel, tuple(operands), name, name))
    inputs = tuple(name for step in steps for name in step.inputs)
    program = Program(tuple(steps), layouts, inputs, tuple(step.output for step in steps))
    with tempfile.TemporaryDirectory() as folder:
        worker.write(program, chosen, Path(folder))
        loaded = Loaded(Listing.of(program), Library.open(Path(folder), threads=1))
        memory = {name: aligned(layouts[name].to_memory(array)) for name, array in values.items()}
        memory |= {step.output: aligned(_room(layouts[step.output])) for step in steps}
        calls = {call.output: loaded.prepared(call, memory) for call in loaded.listing.calls}
        runs: dict[str, Callable[[], object]] = {
            form: functools.partial(_each, [calls[f"{form}_{which}"] for which in "kv"]) for form in FORMS
        }
        grouped = queries.reshape(shape.shared, -1, shape.head), shares.reshape(shape.shared, -1, past)
        runs["numpy"] = lambda: (grouped[0] @ np.swapaxes(real[0][0], 1, 2), grouped[1] @ real[1][0])
        timers = {name: functools.partial(processor_time, run) for name, run in runs.items()}
        sizes = {form: _bytes(values, form) for form in FORMS}
        return {"times": latency.take_turns(timers, blocks, seconds), "sizes": {**sizes, "numpy": sizes[FLOAT]}}


def _room(layout: Any) -> np.ndarray:
    return np.zeros((1, layout.stride), np.float32)


def _each(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _bytes(values: dict[str, np.ndarray], form: str) -> int:
    """Of keys and values."""
    return sum(x.nbytes for name, x in values.items() if name.startswith(form) and not name.endswith("_x"))


def rows_of(options: argparse.Namespace, past: int) -> list[dict[str, Any]]:
    """A row for each form."""
    outcome = in_child(raced, options.size, past, options.blocks, options.seconds)
    if outcome.error:
        return [{"past": past, "note": outcome.error}]
    times, sizes = outcome.value["times"], outcome.value["sizes"]
    return [
        {
            "past": past,
            "form": name,
            "bytes": sizes[name],
            "microseconds": 1000 * statistics.median(times[name]),
            "gigabytes": sizes[name] / statistics.median(times[name]) / 1e6,
            "of_float": latency.ratio(times[name], times[FLOAT]),
        }
        for name in times
    ]


def main() -> None:
    """Print the table."""
    parser = harness.command_line(__doc__)
    parser.add_argument("--size", choices=random_llama.SHAPES, default="100m")
    parser.add_argument("--past", type=lambda text: [int(part) for part in text.split(",")], default=[512, 2048])
    parser.add_argument("--blocks", type=int, default=25, help="rounds; each runs once in each")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a block")
    options = parser.parse_args()
    facts = harness.machine()
    rows = [row for past in options.past for row in rows_of(options, past)]
    harness.write_results(options.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
