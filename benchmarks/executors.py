"""The same compile with weights solved in threads, in processes and by Ray: what it costs, and whether bytes differ.

python benchmarks/executors.py MODEL DATA [--ways threads,processes,ray] [--workers 2] [--rounds 1] [--options "..."]

Each compile begins with an empty store and is one command, watched as by `peak_memory.py`. Seconds of a processor are
those of all processes of the command, in the program and in the system; other work on the machine hardly changes them,
but it does change the seconds of the clock. Ways take turns; the least of all rounds is told.
"""

import argparse
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import peak_memory
from harness import Column, number, say

COLUMNS = (
    Column("model", "model"),
    Column("weights solved in", "way"),
    Column("workers", "workers"),
    Column("seconds of a processor", "processor", number(1)),
    Column("of threads", "of_threads", number(3)),
    Column("seconds", "seconds", number(1)),
    Column("peak MiB", "peak_mb", number(0)),
    Column("bytes as of threads", "same"),
    Column("note", "note"),
)
EVERY = 0.2


def compiled(options: argparse.Namespace, way: str) -> tuple[peak_memory.Peak, Mapping[str, str]]:
    """What one compile took, and the digests of its files by name."""
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "ptqc", "compile", str(options.model), "--calibration", str(options.data)]
        command += ["-o", str(folder / "out"), "--cache", str(folder / "cache"), *shlex.split(options.options)]
        command += ["--executor", way, "--workers", str(options.workers), "--quiet"]
        peak = peak_memory.measure(command, options.every)
        return peak, {} if peak.code else harness.manifest(folder / "out")["files"]


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way."""
    runs: dict[str, list[tuple[peak_memory.Peak, Mapping[str, str]]]] = {way: [] for way in options.ways}
    for turn in range(options.rounds):
        for way in options.ways:
            runs[way].append(compiled(options, way))
            took = runs[way][-1][0]
            say(f"{way}, round {turn + 1}: {took.processor:.1f} s of a processor, {took.seconds:.1f} s")
    first = next(iter(runs.values()))
    return [_row(options, way, several, first) for way, several in runs.items()]


def _row(
    options: argparse.Namespace,
    way: str,
    runs: Sequence[tuple[peak_memory.Peak, Mapping[str, str]]],
    first: Sequence[tuple[peak_memory.Peak, Mapping[str, str]]],
) -> dict[str, Any]:
    row = {"model": options.model.stem, "way": way, "workers": options.workers}
    if codes := [took.code for took, _ in runs if took.code]:
        return {**row, "note": f"ended with exit code {codes[0]}"}
    least = min(took.processor for took, _ in runs)
    usual = min(took.processor for took, _ in first)
    wanted = first[0][1]
    differing = sorted({name for _, files in runs for name in wanted if files.get(name) != wanted[name]})
    return {
        **row,
        "processor": least,
        "of_threads": least / usual if usual else None,
        "seconds": min(took.seconds for took, _ in runs),
        "peak_mb": max(took.peak_mb for took, _ in runs),
        "same": f"all but {', '.join(differing)}" if differing else f"all {len(wanted)} files",
    }


def main() -> None:
    """Print the table."""
    parser = harness.command_line(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, help="calibration data")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["threads", "processes", "ray"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--options", default="", help='of ptqc compile, as "--budget 13%%"')
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between two looks")
    parser.add_argument("--work", type=Path, default=harness.RESULTS / "executors", help="for stores and artifacts")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    rows, facts = rows_of(options), harness.machine()
    harness.write_results(options.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
