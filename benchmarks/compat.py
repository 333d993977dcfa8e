"""Load artifacts in the ONNX Runtime of other environments, and compare with the installed one.

python benchmarks/compat.py --python /path/to/python [--artifacts FOLDER ...] [--large] [--out results.json]
                            [--record]

An artifact of no task is run on the first of its golden samples. --large adds a file of one weight of 303 million
numbers (`large_weight.py`; 6 GB of memory). --record puts the rows into figures/compat.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import harness
import large_weight
import numpy as np
from harness import FIGURES, RESULTS, Column, Feeds, number, significant
from tasks import all_tasks, task_of

from ptqc.utils.store import write_npz

PROBE = Path(__file__).with_name("compat_probe.py")
TIMEOUT = 600
INTEGER_KERNELS = frozenset(("QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"))
FLOAT_LAYERS = frozenset(("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"))
RECORDED = (
    *("task", "budget", "runtime", "load_ms", "run_ms", "planned", "integer_kernels", "float_layers", "not_folded"),
    *("not_folded_operators", "relative_difference", "largest_difference", "verdict"),
)
COLUMNS = (
    Column("artifact", "artifact"),
    Column("opset", "opset"),
    Column("runtime", "runtime"),
    Column("load ms", "load_ms", number(0)),
    Column("run ms", "run_ms", number(1)),
    Column("planned", "planned", number(0)),
    Column("integer kernels", "integer_kernels", number(0)),
    Column("float layers", "float_layers", number(0)),
    Column("not folded", "not_folded", number(0)),
    Column("relative difference", "relative_difference", significant(3)),
    Column("largest", "largest_difference", significant(3)),
    Column("verdict", "verdict"),
)


def probe(python: str, model: Path, feeds: Path, folder: Path) -> dict[str, Any]:
    """What another interpreter makes of a model: its facts, the kernels it picked, and its outputs."""
    optimized, outputs = folder / "optimized.onnx", folder / "outputs.npz"
    command = [python, "-W", "ignore", str(PROBE), str(model), str(feeds), str(optimized), str(outputs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=clean())
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"runtime": python, "error": harness.describe(error)}
    except (IndexError, ValueError):
        last = done.stderr.strip()[-harness.LONGEST_ERROR :]
        return {"runtime": python, "error": f"ended with exit code {done.returncode}: {last}"}
    if optimized.is_file():
        result |= kernels(optimized)
    if outputs.is_file():
        with np.load(outputs, allow_pickle=False) as arrays:
            result["outputs"] = dict(arrays)
    return result


def clean() -> dict[str, str]:
    """The environment without what would lead another interpreter to this one's packages."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in own}


def kernels(optimized: Path) -> dict[str, Any]:
    """What the optimized model runs."""
    import onnx

    graph = onnx.load(optimized, load_external_data=False).graph
    operators = Counter(node.op_type for node in graph.node)
    names = [node.op_type for node in not_folded(graph)]
    unpacking = {"not_folded": len(names), "not_folded_operators": sorted(set(names))}
    return {"operators": dict(sorted(operators.items())), **count_kernels(operators), **unpacking}


def count_kernels(operators: Mapping[str, int]) -> dict[str, int]:
    """Integer kernels, and layers in float."""

    def total(names: frozenset[str]) -> int:
        return sum(count for name, count in operators.items() if name in names)

    integer = total(INTEGER_KERNELS) + sum(count for name, count in operators.items() if name.startswith("QLinear"))
    return {"integer_kernels": integer, "float_layers": total(FLOAT_LAYERS)}


def not_folded(graph: Any, outside: Collection[str] = ()) -> Iterator[Any]:
    """Nodes that compute the same in every run, those of subgraphs too, but for Constant: all they read is constant.

    outside: constants of the graphs around this one.
    """
    fixed = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input} | {*outside}
    for node in graph.node:
        if node.op_type == "Constant":
            fixed.update(node.output)
        elif (
            node.input
            and fixed.issuperset(name for name in node.input if name)
            and not node.op_type.startswith("Random")
        ):
            fixed.update(node.output)
            yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from not_folded(inner, fixed)


def difference(wanted: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of any element, and root mean square of the differences over that of the wanted values."""
    pairs = [(wanted[name].astype(np.float64), outputs[name].astype(np.float64)) for name in wanted]
    power = sum(float((a**2).sum()) for a, _ in pairs)
    error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    largest = max((float(np.abs(a - b).max()) for a, b in pairs if a.size), default=0.0)
    return {"relative_difference": (error / power) ** 0.5 if power else error, "largest_difference": largest}


def verdict(probe: Mapping[str, Any], installed: Mapping[str, Any]) -> str:
    """In a few words, whether a runtime does what the installed one does."""
    if "error" in probe:
        return f"does not run: {probe['error'][: harness.LONGEST_ERROR]}"
    remarks = ["unpacks at every run"] if probe["not_folded"] else []
    for key, what in (("integer_kernels", "integer kernels"), ("float_layers", "float layers")):
        if change := probe[key] - installed.get(key, probe[key]):
            remarks.append(f"{change:+d} {what}")
    return ", ".join(remarks) or "as planned"


def compare(model: Path, facts: Mapping[str, Any], pythons: list[str], feeds: Feeds) -> list[dict[str, Any]]:
    """The rows of a file: the installed runtime first, then the others. facts: what all rows say."""
    probes = [probe_afresh(python, model, feeds) for python in (sys.executable, *pythons)]
    installed, others = probes[0], probes[1:]
    rows = [installed | {"verdict": verdict(installed, installed)}]
    for other in others:
        row = other | {"verdict": verdict(other, installed)}
        if "outputs" in other and "outputs" in installed:
            row |= difference(installed["outputs"], other["outputs"])
        rows.append(row)
    return [{**facts, **{key: value for key, value in row.items() if key != "outputs"}} for row in rows]


def facts_of(artifact: Path, task: str) -> dict[str, Any]:
    """What all rows of an artifact say."""
    document = harness.manifest(artifact)
    return {
        "artifact": artifact.name,
        "task": task,
        "budget": str(document["budget"]),
        "opset": f"{document['file']['opset']}, IR {document['file']['ir_version']}",
        "planned": document["verification"]["integer_nodes"],
    }


def compare_large(pythons: list[str]) -> list[dict[str, Any]]:
    """The rows of a file of one large weight."""
    facts = {"task": large_weight.NAME, "budget": f"{large_weight.BITS}bit", "planned": 0}
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as name:
        model = large_weight.write(Path(name))
        return compare(model, {"artifact": large_weight.NAME, **facts}, pythons, large_weight.sample())


def golden_sample(artifact: Path) -> Feeds:
    """The first of the samples that an artifact is verified on."""
    from ptqc.artifact.golden import Golden

    return Golden.read(artifact / "golden.safetensors").inputs[0]


def probe_afresh(python: str, model: Path, feeds: Feeds) -> dict[str, Any]:
    """Probe in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as name:
        folder = Path(name)
        write_npz(folder / "feeds.npz", feeds)
        return probe(python, model, folder / "feeds.npz", folder)


def parse() -> argparse.Namespace:
    parser = harness.command_line(__doc__)
    parser.add_argument("--python", action="append", default=[], help="an interpreter with another onnxruntime")
    parser.add_argument("--artifacts", nargs="+", default=[RESULTS], help="artifacts, or folders of them")
    parser.add_argument("--large", action="store_true", help="a file of one weight of 303 million numbers, too")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from, too")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    facts, rows, tasks = harness.machine(), [], all_tasks().values()
    for artifact in harness.artifacts_below(arguments.artifacts):
        task = task_of(artifact, tasks)
        harness.say(artifact.name)
        feeds = golden_sample(artifact) if task is None else task.calibration(1)[0]
        facts_of_rows = facts_of(artifact, artifact.name if task is None else task.name)
        rows += compare(artifact / "model.onnx", facts_of_rows, arguments.python, feeds)
    if arguments.large:
        harness.say(large_weight.NAME)
        rows += compare_large(arguments.python)
    harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        measured = [{key: row.get(key) for key in RECORDED} for row in rows]
        harness.record(FIGURES / "compat.json", measured, facts, "runtime")
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
