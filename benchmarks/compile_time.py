"""Seconds of a processor that a compile and a resolve take, and how far the file is from the float model.

python benchmarks/compile_time.py [--tasks a,b] [--budget 13%] [--resolved 14%] [--seeds 0,1,2] [--pipelines light]
                                  [--samples 256] [--out results.json] [--record]

Every compile has an empty store. --record puts the rows into figures/compile_time.json.
"""

import argparse
import tempfile
import time
from typing import Any

import agreement
import harness
from accuracy import score_compiled
from harness import RESULTS, Column, in_child, number, percent, significant
from tasks import chosen

COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("pipeline", "pipeline"),
    Column("seed", "seed", number(0)),
    Column("compile s", "compile_s", number(1)),
    Column("resolve s", "resolve_s", number(1)),
    Column("resolve / compile", "share", percent(0)),
    Column("of limit", "share_of_limit", percent(2)),
    agreement.DIVERGENCE,
    agreement.RELATIVE_ERROR,
    Column("held-back loss", "held_back_loss", significant(3)),
    Column("note", "note"),
)
DIGITS = {"compile_s": 1, "resolve_s": 1, "share": 3, "share_of_limit": 6, "kl_nat": 6, "relative_error": 6}


def build(name: str, folder: str, cache: str, options: dict[str, Any], samples: int | None) -> dict[str, Any]:
    """Compile a task, or without samples resolve the artifact that is there; runs in a child."""
    from ptqc.api import compile as compile_model
    from ptqc.api import resolve

    task = chosen(name)[0]
    feeds = None if samples is None else task.calibration(samples)
    began = time.process_time()
    if feeds is None:
        artifact = resolve(folder, output=f"{folder}-resolved", force=True, cache=cache, **options)
    else:
        artifact = compile_model(task.path, calibration=feeds, output=folder, force=True, cache=cache, **options)
    seconds, manifest = time.process_time() - began, artifact.manifest
    share = artifact.path.stat().st_size / manifest["allocation"]["limit"]
    return {"seconds": seconds, "share_of_limit": share, "held_back_loss": manifest["results"]["loss"]}


def measure(name: str, pipeline: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of one compile."""
    row: dict[str, Any] = {"task": name, "budget": arguments.budget, "pipeline": pipeline, "seed": seed}
    folder = str(RESULTS / f"{name}-{harness.slug(arguments.budget)}-{pipeline}-{seed}")
    options = {"budget": arguments.budget, "pipeline": pipeline, "seed": seed}
    harness.say(f"{name} {pipeline} {seed}")
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as cache:
        stated = {**options, "samples": arguments.samples}
        compiled = in_child(build, name, folder, cache, stated, arguments.samples)
        if compiled.value is None:
            return {**row, "note": compiled.error}
        row |= {**compiled.value, "compile_s": compiled.value["seconds"]}
        resolved = in_child(build, name, folder, cache, {"budget": arguments.resolved}, None)
        if resolved.value is not None:
            row |= {"resolve_s": resolved.value["seconds"], "share": resolved.value["seconds"] / row["compile_s"]}
    compared = in_child(score_compiled, name, f"{folder}/model.onnx")
    return {**row, **(compared.value or {"note": compared.error})}


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budget", default="13%", help="of the compile")
    parser.add_argument("--resolved", default="14%", help="the budget that is resolved from it")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pipelines", default="light")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from, too")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), []
    for task in chosen(arguments.tasks):
        for pipeline in arguments.pipelines.split(","):
            for seed in map(int, arguments.seeds.split(",")):
                rows.append(measure(task.name, pipeline, seed, arguments))
                harness.write_results(arguments.out, rows, facts)
                if arguments.record and "note" not in rows[-1]:
                    harness.record(
                        harness.FIGURES / "compile_time.json", [_recorded(rows[-1])], facts, "pipeline", "seed"
                    )
    harness.print_results(rows, COLUMNS, facts)


def _recorded(row: dict[str, Any]) -> dict[str, Any]:
    """What documents say of a row."""
    shown = {column.key: row[column.key] for column in COLUMNS if row.get(column.key) is not None}
    return {key: round(value, DIGITS[key]) if key in DIGITS else value for key, value in shown.items()}


if __name__ == "__main__":
    main()
