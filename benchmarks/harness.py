"""What the benchmarks have in common: children with a peak memory of their own, tables, facts about the machine."""

import argparse
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]
Row = Mapping[str, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "benchmarks"
# What documents are written from.
FIGURES = ROOT / "benchmarks" / "figures"
# What benchmarks write, and the documents that are made of it.
WRITTEN = ("benchmarks/figures", "docs", "notes", "*.md")
MISSING = "–"
LONGEST_ERROR = 200
STOPPING = 60.0  # seconds in which a command that is stopped may end what it started

# What decides which 8-bit kernels a processor can use.
CPU_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")
PACKAGES = ("ptqc", "onnxruntime", "onnx", "numpy", "openvino")


@dataclass(frozen=True)
class Outcome:
    """What a child process returned, or why it did not; seconds of wall time and peak memory are the child's own."""

    value: Any
    error: str | None
    seconds: float
    peak_mb: float | None


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the key of its values in a row, and how a value is written."""

    heading: str
    key: str
    show: Callable[[Any], str] = str


def in_child(function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Outcome:
    """Call a function of a module in a fresh process; whatever happens to that process, an Outcome comes back."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    started = time.monotonic()
    process = context.Process(target=_child, args=(there, function, arguments))
    process.start()
    there.close()
    value, error, peak = _receive(here, process, timeout)
    return Outcome(value, error, time.monotonic() - started, peak)


def _receive(pipe: Connection, process: Any, timeout: float | None) -> tuple[Any, str | None, float | None]:
    try:
        if not pipe.poll(timeout):
            process.kill()
            return None, f"stopped after {timeout:g} s", None
        received: tuple[Any, str | None, float | None] = pipe.recv()
        return received
    except EOFError:
        process.join()
        return None, f"the process ended with exit code {process.exitcode}", None
    finally:
        process.join()
        pipe.close()


def _child(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # standard output belongs to the tables
    value, error = None, None
    try:
        value = function(*arguments)
    except Exception as failure:  # a failed task is a row of the table
        error = describe(failure)
    pipe.send((value, error, peak_memory_mb()))


def describe(failure: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}"[:LONGEST_ERROR].rstrip(": ")


def peak_memory_mb() -> float:
    """Peak resident memory of this process in megabytes (10^6 bytes).

    Linux carries ru_maxrss over from the process that started this one, so the kernel's own mark is preferred.
    """
    with contextlib.suppress(OSError):
        match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        if match:
            return int(match[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def session_options(threads: int = 0) -> Any:
    """Quiet ONNX Runtime options; threads = 0 means all cores."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def open_model(path: str | Path, threads: int = 0) -> Run:
    """A model in the installed ONNX Runtime."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), session_options(threads), providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def artifacts_below(folders: Iterable[str | Path]) -> list[Path]:
    """Artifact folders among the given ones and one level below them, sorted by name."""
    artifacts = []
    for folder in map(Path, folders):
        candidates = [folder, *sorted(folder.glob("*/"))]
        artifacts += [
            path for path in candidates if (path / "manifest.json").is_file() and (path / "model.onnx").is_file()
        ]
    return artifacts


def manifest(artifact: Path) -> dict[str, Any]:
    """The manifest of an artifact."""
    document: dict[str, Any] = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    return document


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A Markdown table, a dash where a row has no value."""
    body = [[_cell(row.get(column.key), column.show) for column in columns] for row in rows]
    lines = [[column.heading for column in columns], ["---"] * len(columns), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any, show: Callable[[Any], str]) -> str:
    return MISSING if value is None else show(value).replace("|", "\\|")


def number(digits: int, sign: bool = False) -> Callable[[float], str]:
    """Writes a number with so many digits after the point."""
    return lambda value: f"{value:{'+' if sign else ''},.{digits}f}"


def percent(digits: int) -> Callable[[float], str]:
    """Writes a share as a percentage with so many digits after the point."""
    return lambda share: f"{100 * share:.{digits}f} %"


def significant(digits: int) -> Callable[[float], str]:
    """Writes a number with so many significant digits."""
    return lambda value: f"{value:.{digits}g}"


def tabulate(
    names: Iterable[str],
    rows_of: Callable[..., Sequence[Row]],
    arguments: Sequence[Any],
    columns: Sequence[Column],
    out: Path | None,
) -> list[Row]:
    """Print and give the rows that rows_of(name, *arguments) gives for every task, in a child each, or why not.

    out: where they are written, after every task.
    """
    facts, rows = machine(), list[Row]()
    for name in names:
        outcome = in_child(rows_of, name, *arguments)
        rows += outcome.value or [{"task": name, "note": outcome.error}]
        write_results(out, rows, facts)
    print_results(rows, columns, facts)
    return rows


def slug(text: str) -> str:
    """A budget or a name as part of a file name."""
    return re.sub(r"[^\w.]+", "-", text.replace("%", "pct")).strip("-")


def machine() -> dict[str, Any]:
    """The facts without which no time means anything."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "processor": _cpu_field("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in CPU_FLAGS if flag in (_cpu_field("flags|Features") or "").split()],
        "cores": len(cores),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu_field(name: str) -> str | None:
    with contextlib.suppress(OSError):
        match = re.search(rf"^(?:{name})\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return match[1] if match else None
    return None


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def heading(facts: Mapping[str, Any]) -> str:
    """The machine in a line of Markdown."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['processor']}, {facts['cores']} cores ({' '.join(facts['flags'])}), load {facts['load_average']}, "
        f"{facts['system']}, Python {facts['python']}, {packages}"
    )


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    return parser


def command_line_of_tasks(description: str | None) -> argparse.ArgumentParser:
    """The same with the options of benchmarks that compile tasks."""
    parser = command_line(description)
    parser.add_argument("--tasks", help="comma-separated; default: all")
    parser.add_argument("--samples", type=int, default=256, help="calibration samples")
    return parser


def write_results(path: Path | None, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Write rows and machine as JSON; does nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def record(path: Path, measured: Sequence[Row], facts: Mapping[str, Any], *more: str) -> None:
    """Put rows into a data file, with commit and machine, in the place of those of the same task and budget.

    more: other columns that rows are told apart by. Exits where there is no row: a benchmark that measures nothing has
    not passed.
    """
    if not measured:
        raise SystemExit(f"nothing was measured, so nothing is recorded in {path.name}")
    keys = ("task", "budget", *more)
    rows = {tuple(row[key] for key in keys): row for row in (recorded(path) if path.exists() else ())}
    about = {"commit": commit(), "machine": heading(facts)}
    for row in measured:
        rows[tuple(row[key] for key in keys)] = {**row, **about}
    write_recorded(path, list(rows.values()))


def forget(path: Path, keys: Collection[tuple[str, str]]) -> None:
    """Take rows of these tasks and budgets out of a data file, as no file is so small now."""
    left = [row for row in recorded(path) if (row["task"], row["budget"]) not in keys]
    write_recorded(path, left)


def recorded(path: Path) -> list[dict[str, Any]]:
    """The rows of a data file."""
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"])


def write_recorded(path: Path, rows: Sequence[Row]) -> None:
    """Write a data file."""
    path.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def call(command: Sequence[str], limit: float, log: Path) -> int | None:
    """Run a command that writes to a file; its exit code, or None where it was stopped with all that it started.

    It imports the ptqc of this checkout, wherever the environment has one installed. limit: seconds that it may take.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with log.open("w", encoding="utf-8") as written:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=written, stderr=written, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOPPING)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def last_line(log: Path) -> str:
    """The last line of what a command wrote."""
    return next(reversed(log.read_text(encoding="utf-8").strip().splitlines()), "no output")


def commit() -> str:
    """The commit that is checked out, with a mark where code differs from it; data files and documents may."""
    code = (".", *(f":!{path}" for path in WRITTEN))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return git("rev-parse", "--short=8", "HEAD").decode().strip() + ("+" if changed else "")


def git(*arguments: str) -> bytes:
    """What git prints in this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


def print_results(rows: Sequence[Row], columns: Sequence[Column], facts: Mapping[str, Any]) -> None:
    """Machine and table as Markdown."""
    print(heading(facts), markdown(rows, columns), sep="\n\n")


def say(text: str) -> None:
    """A line for whoever waits, apart from the results."""
    print(text, file=sys.stderr, flush=True)
