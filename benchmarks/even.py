"""Compile tasks with the same bits everywhere, for comparing engines on like terms: latency.py takes what comes out.

python benchmarks/even.py --tasks a,b,net.onnx [--bits 8] [--cpu host,avx2] [--tune quick] [--artifacts FOLDER]
                          [--out results.json]

Activations have 8 bits wherever a kernel takes them, and ranges are the extremes of a few samples, as in ONNX Runtime's
own int8 file.
"""

import argparse
from pathlib import Path
from typing import Any

import harness
from harness import RESULTS, Column, in_child, number
from tasks import chosen

COLUMNS = (
    Column("task", "task"),
    Column("bytes", "bytes", number(0)),
    Column("native libraries", "libraries"),
    Column("seconds", "seconds", number(1)),
    Column("note", "note"),
)


def build(name: str, folder: str, samples: int, bits: int, cpu: str, tune: str) -> dict[str, Any]:
    """Compile a task; runs in a child."""
    from ptqc.api import compile as compile_model

    task = chosen(name)[0]
    artifact = compile_model(
        task.path,
        calibration=task.calibration(samples),
        output=folder,
        force=True,
        target="cpu",
        cpu=cpu,
        tune=tune,
        bits=(bits,),
        allow_8bit=True,
        activations="integer",
        observer="minmax",
        samples=samples,
    )
    libraries = artifact.manifest["targets"]["cpu"]["libraries"]
    return {"bytes": artifact.path.stat().st_size, "libraries": ", ".join(library["isa"] for library in libraries)}


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--tasks", help="comma-separated, ONNX files among them; default: all tasks")
    parser.add_argument("--bits", type=int, default=8, help="of weights")
    parser.add_argument("--cpu", default="host", help="instruction sets of the native libraries")
    parser.add_argument("--tune", default="off", help="how their kernels' loops are cut")
    parser.add_argument("--samples", type=int, default=8, help="calibration samples")
    parser.add_argument("--artifacts", type=Path, default=RESULTS / "even", help="where the artifacts are put")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), []
    for task in chosen(arguments.tasks):
        harness.say(task.name)
        folder = str(arguments.artifacts / f"{task.path.stem}-{arguments.bits}bit")
        options = arguments.samples, arguments.bits, arguments.cpu, arguments.tune
        outcome = in_child(build, task.name, folder, *options)
        rows.append({"task": task.name, "seconds": outcome.seconds, "note": outcome.error, **(outcome.value or {})})
        harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
