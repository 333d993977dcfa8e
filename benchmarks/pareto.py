"""Divergence against bytes: whole compiles beside one width for all layers and a greedy choice, at the same bytes.

python benchmarks/pareto.py [--tasks a,b] [--widths 7,6,5,4,3,2] [--samples 256] [--out results.json]

One width is all layers on even grids of so many bits, reconstructed; its file is the limit of the others. Greedy takes
codebooks too, always the change that loses least for each byte. pareto_plot.py draws the results.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import harness
from ablation import COLUMNS, Bench, greedy, of_width, scored
from accuracy import score_float
from harness import Column, number, percent
from tasks import chosen

SHOWN = (
    Column("task", "task"),
    Column("width", "width", number(0)),
    Column("method", "method"),
    Column("of float", "share", percent(2)),
    *(column for column in COLUMNS if column.key not in ("task", "budget", "step")),
)


def files(bench: Bench, bits: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of each method and what makes its file, of at most the bytes of one width."""

    @cache
    def even() -> bytes:
        return bench.even.reconstructed(of_width(bench.even, bits))

    yield "one width", even
    yield "greedy", lambda: bench.reconstructed(greedy(bench, len(even())))
    yield "light", lambda: bench.compiled(len(even()))
    yield "advanced", lambda: bench.compiled(len(even()), "advanced")


def rows_of(name: str, widths: Sequence[int], samples: int) -> list[dict[str, Any]]:
    """All methods of a task at all widths; runs in a child."""
    task, rows, real = chosen(name)[0], [], score_float(name)
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as folder:
        bench = Bench.of(task, samples, Path(folder))
        for bits in widths:
            for method, make in files(bench, bits):
                harness.say(f"{name} {bits} bits {method}")
                scores = scored(task, make, Path(folder) / "file.onnx", real)
                share = {"share": scores["bytes"] / task.path.stat().st_size} if "bytes" in scores else {}
                rows.append({"task": name, "width": bits, "method": method, "unit": task.unit, **share, **scores})
    return rows


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--widths", default="7,6,5,4,3,2")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = [task.name for task in chosen(arguments.tasks)]
    widths = [int(bits) for bits in arguments.widths.split(",")]
    harness.tabulate(names, rows_of, (widths, arguments.samples), SHOWN, arguments.out)


if __name__ == "__main__":
    main()
