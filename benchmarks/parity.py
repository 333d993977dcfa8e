"""Compare the native libraries of artifacts with their ONNX files on all calibration samples, and score both.

python benchmarks/parity.py [--artifacts FOLDER ...] [--samples 256] [--out results.json] [--record]

--record puts the rows into figures/parity.json.
"""

import argparse
from pathlib import Path
from typing import Any

import harness
from harness import RESULTS, Column, in_child, number
from latency import open_native
from tasks import all_tasks, chosen, task_of

COLUMNS = (
    Column("artifact", "artifact"),
    Column("samples", "samples", number(0)),
    Column("integers", "integers", number(0)),
    Column("differ, kernel by kernel", "wrong", number(0)),
    Column("differ end to end", "chained", number(0)),
    Column("unit", "unit"),
    Column("ONNX file", "onnx_score", number(3)),
    Column("library", "library_score", number(3)),
    Column("note", "note"),
)


def compare(folder: str, name: str, samples: int) -> dict[str, Any]:
    """Every kernel and the whole library on the calibration samples; runs in a child."""
    from ptqc import bisect

    bisection = bisect(folder, data=chosen(name)[0].calibration(samples), samples=samples)
    wrong = sum(bisection.wrong.values())
    row = {"integers": bisection.integers, "reals": bisection.reals, "wrong": wrong, "chained": bisection.chained}
    return {**row, "samples": samples, **({"note": str(bisection)} if wrong else {})}


def score(folder: str, name: str) -> dict[str, Any]:
    """The task's score with ONNX Runtime and with the library; runs in a child."""
    task, model = chosen(name)[0], f"{folder}/model.onnx"
    onnx_score, library_score = task.score(harness.open_model(model)), task.score(open_native(model, threads=0))
    return {"unit": task.unit, "onnx_score": onnx_score, "library_score": library_score}


def measure(artifact: Path, name: str, samples: int) -> dict[str, Any]:
    """The row of an artifact."""
    budget = harness.manifest(artifact)["budget"]
    row: dict[str, Any] = {"task": name, "budget": budget, "artifact": artifact.name}
    for outcome in (in_child(compare, str(artifact), name, samples), in_child(score, str(artifact), name)):
        row |= {"note": outcome.error} if outcome.value is None else outcome.value
    return row


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--artifacts", nargs="+", default=[RESULTS], help="artifacts, or folders of them")
    parser.add_argument("--samples", type=int, default=256, help="calibration samples")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/parity.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    facts, rows, tasks = harness.machine(), list[dict[str, Any]](), all_tasks().values()
    for artifact in harness.artifacts_below(arguments.artifacts):
        task = task_of(artifact, tasks)
        if task is None or not (artifact / "cpu").is_dir():
            continue
        harness.say(artifact.name)
        rows.append(measure(artifact, task.name, arguments.samples))
        harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        harness.record(harness.FIGURES / "parity.json", rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
