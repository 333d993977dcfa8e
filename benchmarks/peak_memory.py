"""The most memory that a command and all its processes hold at one time, file pages that can be dropped not counted.

python benchmarks/peak_memory.py [--every 0.05] [--limit 300] [--phases] [--out results.json]
                                 [--record MODEL BUDGET] COMMAND [ARGUMENT ...]
python benchmarks/peak_memory.py --table results.json

Anonymous pages and shared memory (`Pss_Anon`, `Pss_Shmem` of /proc/PID/smaps_rollup, Linux only) of every process of
the command's session, summed up every few hundredths of a second; what is shared is counted once. Pages of mapped
files are not counted. Ends with the command's exit code; with 124 where it was stopped at the limit.

--phases: each line of progress that the command writes to stderr is preceded by the seconds since the start, the
seconds that its processes had of a processor until then, and the peak since the line before. The seconds of a processor
hardly depend on what else the machine does. Where gigabytes are mapped, a look takes a tenth of a second: give
--every 2. --table: what such a run wrote as Markdown, with a row for each stage that told its end, and what came
before it. --record: put peak and seconds into figures/large_models.json, for a model of this name and its budget.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import harness
from harness import Column, number

COUNTED = ("Pss_Anon:", "Pss_Shmem:")
# Where things stand in /proc/PID/stat, behind the command's name in brackets: the number of the session, and the ticks
# of a processor, in the program and in the system, of the process and of its children that ended.
SESSION, TICKS = 3, slice(11, 15)
TIMED_OUT = 124
# The line of progress at the end of a stage.
ENDED = re.compile(r"(.+): [\d.]+ s(?:, \d+ steps)?")
COLUMNS = (
    Column("up to the end of", "stage"),
    Column("seconds", "seconds", number(0)),
    Column("of a processor", "processor", number(0)),
    Column("peak MiB", "peak_mb", number(0)),
)


@dataclass
class Peak:
    """The memory of a run. peak_mb: at once; at: seconds from the start; processes: that shared it; seconds: of all.

    processor: seconds that all processes had of a processor. phases: lines of progress, each with both seconds at its
    end and the peak since the one before.
    """

    peak_mb: float = 0.0
    at: float = 0.0
    processes: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    code: int | None = None
    phases: list[tuple[str, float, float, float]] = field(default_factory=list)


class Phases:
    """Tells the lines that a command writes, and the peak since the last one."""

    def __init__(self, lines: IO[str], peak: Peak, began: float) -> None:
        self._lines, self._peak, self._began, self._peak_mb = lines, peak, began, 0.0
        self.thread = threading.Thread(target=self._tell)
        self.thread.start()

    def saw(self, peak_mb: float) -> None:
        """So much is held now."""
        self._peak_mb = max(self._peak_mb, peak_mb)

    def _tell(self) -> None:
        with self._lines:
            for line in self._lines:
                seconds, peak_mb, self._peak_mb = time.monotonic() - self._began, self._peak_mb, 0.0
                self._peak.phases.append((line.rstrip(), seconds, self._peak.processor, peak_mb))
                message = f"{seconds:8.1f} s {self._peak.processor:8.1f} of a processor {peak_mb:8,.0f} MiB  {line}"
                print(message, end="", file=sys.stderr, flush=True)


def anonymous_kb(process: Path) -> int:
    """KiB of anonymous memory of a process, given its folder in /proc; 0 where it is gone."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(COUNTED))


def processor_seconds(process: Path) -> float:
    """Seconds of a processor that a process and its ended children had, given its folder in /proc; 0 if it is gone."""
    try:
        ticks = (process / "stat").read_text().rpartition(")")[2].split()[TICKS]
    except OSError:
        return 0.0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def processes_of(session: int) -> Iterator[Path]:
    """Folders in /proc of the processes of a session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[SESSION]) == session:
                yield stat.parent


def measure(command: list[str], every: float = 0.05, limit: float | None = None, *, phases: bool = False) -> Peak:
    """Run a command to its end, or to the limit in seconds, and watch it. phases: also what it says on the way."""
    peak, began = Peak(), time.monotonic()
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE if phases else None, text=True)
    watcher = Phases(process.stderr, peak, began) if process.stderr is not None else None
    try:
        while process.poll() is None and (limit is None or peak.seconds <= limit):
            folders = list(processes_of(process.pid))
            held = [kb for folder in folders if (kb := anonymous_kb(folder))]
            peak.seconds = time.monotonic() - began
            # What a process had goes to its parent when that waits for it, so that the sum falls for a moment.
            peak.processor = max(peak.processor, sum(map(processor_seconds, folders)))
            if watcher is not None:
                watcher.saw(sum(held) / 1024)
            if sum(held) / 1024 > peak.peak_mb:
                peak.peak_mb, peak.at, peak.processes = sum(held) / 1024, peak.seconds, len(held)
            time.sleep(every)
        peak.code = TIMED_OUT if process.poll() is None else process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if watcher is not None:
            watcher.thread.join()
    return peak


def stages(peak: Peak) -> list[dict[str, Any]]:
    """Rows of a table: each stage that told its end, with what came before it, and what came behind the last."""
    rows, before, most = list[dict[str, Any]](), (0.0, 0.0), 0.0
    for line, seconds, processor, peak_mb in peak.phases:
        most = max(most, peak_mb)
        if ended := ENDED.fullmatch(line):
            took = {"seconds": seconds - before[0], "processor": processor - before[1]}
            rows.append({"stage": ended[1], **took, "peak_mb": most})
            before, most = (seconds, processor), 0.0
    rest = {"seconds": peak.seconds - before[0], "processor": peak.processor - before[1]}
    whole = {"seconds": peak.seconds, "processor": peak.processor, "peak_mb": peak.peak_mb}
    return [*rows, {"stage": "the rest", **rest}, {"stage": "whole", **whole}]


def main() -> None:
    """Run the command and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two looks")
    parser.add_argument("--limit", type=float, help="seconds after which the command is stopped")
    parser.add_argument("--phases", action="store_true", help="tell seconds and peaks with each line of progress")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--record", nargs=2, metavar=("MODEL", "BUDGET"), help="in the data of large models, too")
    parser.add_argument("--table", type=Path, help="print what was written so as a table, and run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.table is not None:
        print(harness.markdown(stages(Peak(**json.loads(options.table.read_text()))), COLUMNS))
        return
    peak = measure(options.command, options.every, options.limit, phases=options.phases)
    memory = f"{peak.peak_mb:,.0f} MiB at {peak.at:.1f} s in {peak.processes} processes"
    took = f"{peak.seconds:.1f} s in all, {peak.processor:.1f} of a processor"
    print(f"peak: {memory}; {took}, exit code {peak.code}", file=sys.stderr)
    if options.out is not None:
        options.out.write_text(json.dumps(asdict(peak), indent=1))
    if options.record is not None and peak.code == 0:
        row = dict(zip(("task", "budget"), options.record, strict=True))
        row |= {"seconds": round(peak.seconds), "processor": round(peak.processor), "peak_mib": round(peak.peak_mb)}
        harness.record(harness.FIGURES / "large_models.json", [row], harness.machine())
    sys.exit(peak.code)


if __name__ == "__main__":
    main()
