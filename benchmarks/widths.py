"""Activations of 8 and 16 bits for Qualcomm's NPU: the loss against the share of products that read 16 bits.

python benchmarks/widths.py [--tasks a,b] [--budget 25%] [--limits 0.002,0.0005] [--samples 200] [--emulate]
                            [--out results.json] [--record]

Each task is compiled for the NPU with all activations on 8 bits, within each limit on what activations of 8 bits may
lose, and with all on 16; float model and QDQ model then run on the first samples that the task is scored on, in ONNX
Runtime and, with --emulate, in Qualcomm's emulator. --record puts the rows into figures/widths.json.
"""

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

from agreement import DIVERGENCE, RELATIVE_ERROR, SAME_CLASS, agreement_of
from harness import (
    FIGURES,
    RESULTS,
    Column,
    in_child,
    machine,
    number,
    percent,
    print_results,
    record,
    write_results,
)
from runtimes import CALIBRATION, evaluation_samples, of_one_size
from scores import ERROR, SCORE, above, compared
from tasks import chosen

from ptqc.options import Activations

COLUMNS = (
    Column("task", "task"),
    Column("activations", "activations"),
    Column("products on 16 bits", "share_wide", percent(0)),
    Column("samples", "samples", number(0)),
    Column("runs in", "runtime"),
    SAME_CLASS,
    DIVERGENCE,
    RELATIVE_ERROR,
    SCORE,
    above("float"),
    ERROR,
    Column("note", "note"),
)


def measure(name: str, activations: Activations, limit: float, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile a task and run it; runs in a child. limit: on the loss, for `auto`."""
    import onnx

    from ptqc.api import compile as compile_model
    from ptqc.execution.onnxruntime import Runner
    from ptqc.runtime.foreign import run_in

    task = of_one_size(name)
    feeds, score = evaluation_samples(task, arguments.samples)
    with tempfile.TemporaryDirectory() as room:
        artifact = compile_model(
            task.path,
            calibration=task.calibration(CALIBRATION),
            samples=CALIBRATION,
            budget=arguments.budget,
            runtime="qnn",
            activations=activations,
            activation_limit=limit,
            target="qdq",
            verify_in="",
            output=Path(room) / "out",
            cache=arguments.cache,
        )
        document = artifact.manifest["targets"]["qdq"]
        path = artifact.folder / "qdq" / "model.onnx"
        outputs = {}
        for title, file in {"float": task.path, "ONNX Runtime": path}.items():
            runner = Runner(onnx.load(file))
            outputs[title] = [list(runner.run(sample).values()) for sample in feeds]
        if arguments.emulate:
            run = run_in("qnn", path, feeds, seconds=7200.0)
            outputs[run.name] = [[each[output] for output in runner.outputs] for each in run.outputs]
    scores = {title: score(feeds, several) for title, several in outputs.items()} if score else {}
    share = re.search(r"(\d+)% of the products", document.get("activations", ""))
    rows = []
    for title, several in list(outputs.items())[1:]:
        rows.append(
            {
                "task": name,
                "budget": arguments.budget,
                "activations": {"integer": "8 bits", "float": "16 bits"}.get(activations, f"limit {limit:g}"),
                "runtime": title,
                "share_wide": int(share[1]) / 100 if share else 0.0,
                "samples": len(feeds),
                **(compared(scores[title], scores["float"]) if scores else {}),
                **agreement_of(outputs["float"], several, task.has_classes).to_json(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="comma-separated; default: all")
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--limits", default="0.002,0.0005")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--cache", type=Path, help="a store of measurements to reuse; default: the usual one")
    parser.add_argument("--out", type=Path, default=RESULTS / "widths.json")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    limits = [float(limit) for limit in arguments.limits.split(",") if limit]
    settings: list[tuple[Activations, float]] = [
        ("integer", 0.0),
        *(("auto", limit) for limit in limits),
        ("float", 0.0),
    ]
    facts, rows = machine(), list[dict[str, Any]]()
    for task in chosen(arguments.tasks):
        for activations, limit in settings:
            outcome = in_child(measure, task.name, activations, limit, arguments)
            rows += outcome.value or [{"task": task.name, "note": outcome.error}]
            write_results(arguments.out, rows, facts)
    if arguments.record:
        record(FIGURES / "widths.json", [row for row in rows if "runtime" in row], facts, "activations", "runtime")
    print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
