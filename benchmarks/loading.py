"""What loading costs: float, ONNX Runtime's int8 file, and artifacts, packed and expanded.

python benchmarks/loading.py [--tasks a,b] [--artifacts FOLDER ...] [--samples 4] [--rounds 9] [--out results.json]
                             [--record]

Each file is loaded on one thread in a process of its own, in ONNX Runtime; the files of a task take turns, and the
medians over the rounds are told: milliseconds of a processor, and by how much the resident memory grows at most.
`expanded` is what `ptqc expand` writes, `expanded in place` what ONNX Runtime itself writes at its extended level, as
examples/expand does. --samples: that ONNX Runtime's int8 file is calibrated with, which decides nothing here. --record
puts the rows into figures/loading.json.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from harness import (
    FIGURES,
    RESULTS,
    Column,
    artifacts_below,
    command_line_of_tasks,
    in_child,
    machine,
    manifest,
    number,
    print_results,
    record,
    say,
    write_results,
)
from latency import FLOAT, INT8, make_int8
from tasks import Task, chosen, task_of

PACKED, EXPANDED, IN_PLACE = "packed", "expanded", "expanded in place"
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("file", "file"),
    Column("bytes", "bytes", number(0)),
    Column("nodes", "nodes", number(0)),
    Column("load ms", "load_ms", number(1)),
    Column("of int8", "load_of_int8", number(2)),
    Column("memory MB", "memory_mb", number(1)),
    Column("of int8", "memory_of_int8", number(2)),
    Column("golden samples", "golden"),
    Column("note", "note"),
)


def expand(artifact: Path, folder: Path) -> dict[str, Path]:
    """Both expanded forms of an artifact; runs in a child."""
    import onnxruntime as ort

    from ptqc.artifact.expand import expand as expand_artifact

    result = {EXPANDED: expand_artifact(artifact, output=folder / EXPANDED).path, IN_PLACE: folder / "in_place.onnx"}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(result[IN_PLACE])
    ort.InferenceSession(str(artifact / "model.onnx"), options, ["CPUExecutionProvider"])
    return result


def compare(artifact: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    """Whether files give the artifact's golden samples, bit by bit; runs in a child."""
    from ptqc.artifact.golden import Golden
    from ptqc.execution.onnxruntime import Runner, tensors_of

    golden = Golden.read(artifact / "golden.safetensors")
    result = {}
    for name, path in paths.items():
        runner = Runner(path)
        outputs = [tensors_of(runner.run(feeds)) for feeds in golden.inputs]
        pairs = [(one[key], wanted[key]) for one, wanted in zip(outputs, golden.outputs, strict=True) for key in wanted]
        result[name] = "equal" if all(np.array_equal(*pair, equal_nan=True) for pair in pairs) else "differ"
    return result


def load_in_turns(paths: Sequence[Path], rounds: int) -> list[tuple[float, float]]:
    """Milliseconds and megabytes of each file, medians; runs in a child."""
    from ptqc.execution.loading import measure_load

    costs = [[measure_load(path, processes=1) for path in paths] for _ in range(rounds)]
    return [
        (
            statistics.median(cost.milliseconds for cost in of_file),
            statistics.median(cost.memory_bytes for cost in of_file) / 1e6,
        )
        for of_file in zip(*costs, strict=True)
    ]


def measure(task: Task, artifacts: Sequence[Path], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one task: its two files in integers and float once, and three for each artifact."""
    say(task.name)
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as name:
        folder = Path(name)
        int8 = folder / f"{task.path.stem}.onnx"
        quantized = in_child(make_int8, task.name, str(int8), arguments.samples)
        files: dict[tuple[str, str], Path] = {("", FLOAT): task.path}
        files |= {} if quantized.error else {("", INT8): int8}
        golden: dict[tuple[str, str], str] = {}
        for artifact in artifacts:
            budget = str(manifest(artifact)["budget"])
            forms = {PACKED: artifact / "model.onnx"}
            forms |= in_child(expand, artifact, folder / budget.strip("%")).value or {}
            files |= {(budget, form): path for form, path in forms.items()}
            golden |= {(budget, form): said for form, said in in_child(compare, artifact, forms).value.items()}
        outcome = in_child(load_in_turns, list(files.values()), arguments.rounds)
        if outcome.error:
            return [{"task": task.name, "note": outcome.error}]
        costs = dict(zip(files, outcome.value, strict=True))
        reference = costs.get(("", INT8))
        return [
            {
                "task": task.name,
                "budget": budget,
                "file": form,
                "bytes": sum(file.stat().st_size for file in (path, path.with_suffix(".data")) if file.is_file()),
                "nodes": nodes(path),
                "load_ms": round(costs[budget, form][0], 2),
                "memory_mb": round(costs[budget, form][1], 2),
                "load_of_int8": reference and round(costs[budget, form][0] / reference[0], 3),
                "memory_of_int8": reference and round(costs[budget, form][1] / reference[1], 3),
                "golden": golden.get((budget, form)),
                "note": quantized.error if form == FLOAT else None,
            }
            for (budget, form), path in files.items()
        ]


def nodes(path: Path) -> int:
    """Nodes of the main graph once every call is inlined."""
    model = onnx.load(path, load_external_data=False)
    inside = {function.name: len(function.node) for function in model.functions}
    return sum(inside.get(node.op_type, 1) for node in model.graph.node)


def main() -> None:
    parser = command_line_of_tasks(__doc__)
    parser.set_defaults(samples=4)
    parser.add_argument("--artifacts", nargs="+", default=[RESULTS], help="artifacts, or folders of them")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    tasks = chosen(arguments.tasks)
    facts, rows = machine(), list[dict[str, Any]]()
    artifacts = artifacts_below(arguments.artifacts)
    for task in tasks:
        own = [artifact for artifact in artifacts if task_of(artifact, tasks) is task]
        if own:
            rows += measure(task, own, arguments)
            write_results(arguments.out, rows, facts)
    if arguments.record:
        record(FIGURES / "loading.json", [row for row in rows if "file" in row], facts, "file")
    print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
