"""Compiles with a time limit beside busy processes: whether the limit is kept, and what the file loses for it.

python benchmarks/time_limits.py [--tasks a,b] [--limits 60,120,300] [--budget 13%] [--busy 4] [--samples 256]
                                 [--out results.json] [--record]

Every compile has an empty store. The first one of each task has no limit and nothing beside it: its file is the same
beside busy processes. --record puts the rows into figures/time_limits.json.
"""

import argparse
import tempfile
import time
from typing import Any

import agreement
import harness
from accuracy import score_compiled
from harness import RESULTS, Column, in_child, number, significant
from steady import beside
from tasks import chosen

COLUMNS = (
    Column("task", "task"),
    Column("limit s", "limit_s"),
    Column("took s", "took_s", number(0)),
    Column("of limit", "of_limit", number(2)),
    agreement.DIVERGENCE,
    agreement.RELATIVE_ERROR,
    Column("times that of no limit", "times_unlimited", number(2)),
    Column("held-back loss", "held_back_loss", significant(3)),
    Column("first line of the summary", "first_line"),
    Column("note", "note"),
)
NO_LIMIT = "none"


def build(name: str, folder: str, cache: str, options: dict[str, Any], samples: int) -> dict[str, Any]:
    """Compile a task; runs in a child."""
    from ptqc.api import compile as compile_model

    task = chosen(name)[0]
    began = time.monotonic()
    feeds = task.calibration(samples)
    artifact = compile_model(task.path, calibration=feeds, output=folder, force=True, cache=cache, **options)
    return {
        "took_s": round(time.monotonic() - began, 1),
        "held_back_loss": artifact.manifest["results"]["loss"],
        "first_line": artifact.summary().splitlines()[0],
    }


def measure(name: str, limit: int | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of one compile."""
    busy = 0 if limit is None else arguments.busy
    row: dict[str, Any] = {"task": name, "budget": arguments.budget, "busy": busy}
    row["limit_s"] = NO_LIMIT if limit is None else limit
    folder = str(RESULTS / f"{name}-limit-{row['limit_s']}")
    options: dict[str, Any] = {"budget": arguments.budget, "samples": arguments.samples}
    options |= {} if limit is None else {"time_limit": float(limit)}
    harness.say(f"{name} {row['limit_s']}")
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as cache, beside(busy):
        compiled = in_child(build, name, folder, cache, options, arguments.samples)
    if compiled.value is None:
        return {**row, "note": compiled.error}
    row |= compiled.value
    row |= {} if limit is None else {"of_limit": round(row["took_s"] / limit, 3)}
    compared = in_child(score_compiled, name, f"{folder}/model.onnx")
    return {**row, **(compared.value or {"note": compared.error})}


def main() -> None:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budget", default="13%")
    parser.add_argument("--limits", default="60,120,300", help="seconds")
    parser.add_argument("--busy", type=int, default=4, help="processes that run beside the compile")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from, too")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), list[dict[str, Any]]()
    for task in chosen(arguments.tasks):
        unlimited: float | None = None
        for limit in (None, *map(int, arguments.limits.split(","))):
            row = measure(task.name, limit, arguments)
            divergence = row.get(agreement.DIVERGENCE.key) or row.get(agreement.RELATIVE_ERROR.key)
            if limit is None:
                unlimited = divergence
            elif divergence is not None and unlimited:
                row["times_unlimited"] = round(divergence / unlimited, 3)
            rows.append(row)
            harness.write_results(arguments.out, rows, facts)
            if arguments.record:
                recorded = {
                    key: row[key] for key in ("budget", "busy", *(column.key for column in COLUMNS)) if key in row
                }
                harness.record(harness.FIGURES / "time_limits.json", [recorded], facts, "limit_s")
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
