"""QDQ and TFLite models in the runtimes that they are for, against ONNX Runtime on samples of the evaluation split.

python benchmarks/runtimes.py [--tasks a,b] [--budget 25%] [--activations integer] [--runtimes openvino,qnn,litert]
                              [--samples 200] [--out results.json] [--record]

Each task is compiled with --target qdq, and for litert with --target litert; float model, packed file and what the
targets built then run on the first samples that the task is scored on. LiteRT has a second row with its reference
kernels, and where Arm's compiler Vela is installed, that says how many operators run on an Ethos-U55. Where `scores.py`
can score samples, every row has the difference to the packed file's score on the same samples, with the paired standard
error. --record puts the rows into figures/runtimes.json.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from agreement import DIVERGENCE, RELATIVE_ERROR, SAME_CLASS, agreement_of
from figures import PACKED
from harness import (
    FIGURES,
    RESULTS,
    Column,
    Feeds,
    in_child,
    machine,
    number,
    open_model,
    percent,
    print_results,
    record,
    write_results,
)
from scores import ERROR, SCORE, Score, above, compared, places_of, score_of
from tasks import Task, chosen, padded

CALIBRATION = 256
# Tokens of every sample, as the targets fix all shapes; no sentence has more.
LENGTHS = {"minilm_l6_v2_emb": 64}
COLUMNS = (
    Column("task", "task"),
    Column("runs in", "runtime"),
    Column("of float bytes", "share_of_float", percent(1)),
    Column("zipped", "share_zipped", percent(1)),
    Column("samples", "samples", number(0)),
    Column("layers on integers", "placement"),
    SAME_CLASS,
    DIVERGENCE,
    RELATIVE_ERROR,
    Column("loss of ONNX Runtime's", "ratio", number(2)),
    Column("score of float", "float_score", number(2)),
    SCORE,
    above("packed"),
    ERROR,
    Column("on Ethos-U55", "npu_share", percent(1)),
    Column("note", "note"),
)
# Kernels that a runtime is measured with, by what its name gets behind it.
KERNELS: dict[str, dict[str, dict[str, Any]]] = {"litert": {"": {}, ", reference kernels": {"kernels": "BUILTIN_REF"}}}


def of_one_size(name: str) -> Task:
    """A task, its samples filled up where they differ in size."""
    task = chosen(name)[0]
    return padded(task, LENGTHS[name]) if name in LENGTHS else task


def evaluation_samples(task: Task, count: int) -> tuple[list[Feeds], Score | None]:
    """Single samples of those that a task is scored on, evenly spread, and what scores them."""
    real, total = open_model(task.path), 0
    (shapes,) = ({name: array.shape for name, array in one.items()} for one in task.calibration(1))

    def counted(sample: Feeds) -> list[np.ndarray]:
        nonlocal total
        total += len(_singles(sample, shapes))
        return real(sample)

    task.score(counted)
    places = places_of(task, total, count)
    wanted = set(places)
    feeds: list[Feeds] = []
    place = 0

    def collected(sample: Feeds) -> list[np.ndarray]:
        nonlocal place
        for one in _singles(sample, shapes):
            if place in wanted:
                feeds.append(one)
            place += 1
        return real(sample)

    task.score(collected)
    return feeds, score_of(task, places, total)


def _singles(sample: Feeds, shapes: Mapping[str, tuple[int, ...]]) -> list[Feeds]:
    """The samples of a batch, which lie along the axis that has another length than in a sample of these shapes."""
    axes = {
        name: [axis for axis, (size, one) in enumerate(zip(array.shape, shapes[name], strict=True)) if size != one == 1]
        for name, array in sample.items()
    }
    sizes = {sample[name].shape[places[0]] for name, places in axes.items() if places}
    if len(sizes) != 1:
        return [{name: array.copy() for name, array in sample.items()}]
    (count,) = sizes
    return [
        {name: np.take(array, [row], axes[name][0]) if axes[name] else array.copy() for name, array in sample.items()}
        for row in range(count)
    ]


def npu_share(model: Path) -> float | None:
    """The share of operators that Arm's compiler puts on an Ethos-U55; None where it is not installed."""
    vela = shutil.which("vela", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if vela is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [vela, "--accelerator-config", "ethos-u55-128", str(model), "--output-dir", folder]
        stdout = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cpu, npu = (int(each) for each in re.findall(r"(?:CPU|NPU) operators = (\d+)", stdout))
    return npu / (cpu + npu)


def measure(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile a task for each target, and run it everywhere; runs in a child."""
    import onnx

    from ptqc.api import compile as compile_model
    from ptqc.errors import TargetError
    from ptqc.execution.onnxruntime import Runner
    from ptqc.runtime.foreign import file_for, run_in

    task = of_one_size(name)
    feeds, score = evaluation_samples(task, arguments.samples)
    runtimes = [*filter(None, arguments.runtimes.split(","))]
    targets: dict[str, dict[str, Any]] = {"qdq": {"verify_in": ""}}
    if "litert" in runtimes:
        targets["litert"] = {}
    with tempfile.TemporaryDirectory() as room:
        artifacts = {}
        for target, options in targets.items():
            try:
                artifacts[target] = compile_model(
                    task.path,
                    calibration=task.calibration(CALIBRATION),
                    samples=CALIBRATION,
                    budget=arguments.budget,
                    activations=arguments.activations,
                    target=target,
                    output=Path(room) / target,
                    cache=arguments.cache,
                    **options,
                )
            except TargetError as error:
                print(f"{name}: {error}")
        documents = {target: artifact.manifest["targets"][target] for target, artifact in artifacts.items()}
        path = artifacts["qdq"].folder / "qdq" / "model.onnx"
        files = {"float": task.path, PACKED: artifacts["qdq"].path, "ONNX Runtime": path}
        outputs = {}
        for title, file in files.items():
            runner = Runner(onnx.load(file))
            outputs[title] = [list(runner.run(sample).values()) for sample in feeds]
        names = runner.outputs  # of the QDQ model
        facts = dict.fromkeys(outputs, documents["qdq"])
        placements, shares = {}, {}
        for runtime in runtimes:
            target = runtime if runtime in targets else "qdq"
            if target not in artifacts:
                continue
            model = file_for(runtime, artifacts[target].folder)
            for how, options in KERNELS.get(runtime, {"": {}}).items():
                try:
                    run = run_in(runtime, model, feeds, seconds=3600.0, **options)
                except TargetError as error:
                    print(f"{name}: {error}")
                    continue
                title = f"{run.name}{how}"
                outputs[title] = [[each[output] for output in names] for each in run.outputs]
                placements[title], facts[title] = run.placement, documents[target]
                shares[title] = npu_share(model) if target == "litert" else None
        size = task.path.stat().st_size
    scores = {title: score(feeds, several) for title, several in outputs.items()} if score else {}
    rows = []
    for title, several in list(outputs.items())[1:]:
        rows.append(
            {
                "task": name,
                "budget": arguments.budget,
                "activations": arguments.activations,
                "runtime": title,
                "share_of_float": facts[title]["bytes"] / size,
                "share_zipped": facts[title]["bytes_zipped"] / size,
                "samples": len(feeds),
                "placement": str(placements.get(title, "")),
                "layers_not_on_integers": len(placements[title].others) if title in placements else 0,
                "npu_share": shares.get(title),
                **agreement_of(outputs["float"], several, task.has_classes).to_json(),
                **_scored(task, title, scores),
            }
        )
    key = "kl_nat" if task.has_classes else "relative_error"
    for row in rows:
        row["ratio"] = row[key] / rows[0][key]
    return rows


def _scored(task: Task, title: str, scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The score of a runtime beside those of the float model and the packed file; nothing without scores."""
    if not scores:
        return {}
    about = {"unit": task.unit, "float_score": float(scores["float"][0])}
    return {**about, **compared(scores[title], scores[PACKED])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", help="comma-separated; default: all")
    parser.add_argument("--budget", default="25%")
    parser.add_argument("--activations", default="integer")
    parser.add_argument("--runtimes", default="openvino,qnn,litert")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--cache", type=Path, help="a store of measurements to reuse; default: the usual one")
    parser.add_argument("--out", type=Path, default=RESULTS / "runtimes.json")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    facts, rows = machine(), list[dict[str, Any]]()
    for task in chosen(arguments.tasks):
        outcome = in_child(measure, task.name, arguments)
        rows += outcome.value or [{"task": task.name, "note": outcome.error}]
        write_results(arguments.out, rows, facts)
    if arguments.record:
        record(FIGURES / "runtimes.json", [row for row in rows if "runtime" in row], facts, "runtime")
    print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
