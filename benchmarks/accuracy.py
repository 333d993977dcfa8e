"""Compile every task for every budget, and score what comes out with stock ONNX Runtime.

python benchmarks/accuracy.py [--tasks a,b] [--budgets 25%,13%] [--samples 256] [--calibration synthetic]
                              [--seed 0] [--pipeline light] [--formats int,tcq] [--target cpu] [--out results.json]
                              [--record] [--record-formats] [--record-calibration]

--record puts the rows into figures/accuracy.json, from which `figures.py` writes the tables of the documents;
--record-formats into figures/formats.json, told apart by --formats and --seed; --record-calibration into
figures/calibration.json, told apart by --calibration.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import agreement
import harness
from harness import RESULTS, Column, Outcome, in_child, number, percent
from tasks import Task, chosen

REAL, SYNTHETIC = "real", "synthetic"
BLOCKERS_SHOWN = 3
USUAL = {"calibration": REAL, "seed": 0, "pipeline": "light", "activations": "auto", "formats": ""}
# What is kept of a row for the documents, and digits behind the point; 0: as it is.
RECORDED = {
    **dict.fromkeys(("task", "budget", "how", "unit", "float_bytes", "bytes", "weights_by_format"), 0),
    **dict.fromkeys(("share_of_limit", "top1_agreement", "kl_nat", "relative_error"), 6),
    **dict.fromkeys(("float_score", "score", "difference"), 3),
    **dict.fromkeys(("seconds", "peak_mb"), 1),
}
KNOWN_WITHIN = 0.02  # another machine scores the float model this close to its known score
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("calibration", "calibration"),
    Column("seed", "seed", number(0)),
    Column("pipeline", "pipeline"),
    Column("bytes", "bytes", number(0)),
    Column("of float", "share_of_float", percent(2)),
    Column("of limit", "share_of_limit", percent(2)),
    Column("unit", "unit"),
    Column("float", "float_score", number(3)),
    Column("score", "score", number(3)),
    *agreement.COLUMNS,
    Column("seconds", "seconds", number(1)),
    Column("peak MB", "peak_mb", number(0)),
    Column("note", "note"),
)


def build(name: str, budget: str, folder: str, earlier: str | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile a task, or resolve it from an earlier artifact; runs in a child."""
    from ptqc.api import compile as compile_model
    from ptqc.api import resolve
    from ptqc.errors import Infeasible

    task = chosen(name)[0]
    options = {"output": folder, "budget": budget, "force": True, "cache": arguments.cache}
    options |= {"target": arguments.target, "pipeline": arguments.pipeline}
    started = time.monotonic()
    try:
        if earlier:
            artifact = resolve(earlier, **options)
        else:
            real = arguments.calibration == REAL
            feeds = task.calibration(arguments.samples) if real else arguments.calibration
            options |= {"samples": arguments.samples, "seed": arguments.seed, "activations": arguments.activations}
            options |= {"formats": tuple(filter(None, arguments.formats.split(",")))}
            artifact = compile_model(task.path, calibration=feeds, **options)
    except Infeasible as result:
        return {"smallest": result.smallest, "blockers": [list(pair) for pair in result.blockers]}
    seconds, manifest = time.monotonic() - started, artifact.manifest
    sizes = {"bytes": artifact.path.stat().st_size, "limit": manifest["allocation"]["limit"]}
    return {**sizes, "seconds": seconds, "weights_by_format": manifest["weights_by_format"]}


def score_float(name: str) -> float:
    """Score of the float model; runs in a child."""
    task = chosen(name)[0]
    return float(task.score(harness.open_model(task.path)))


def score_compiled(name: str, model: str, threads: int = 0) -> dict[str, Any]:
    """Score of a compiled model and its agreement with the float model on the same inputs; runs in a child."""
    task = chosen(name)[0]
    comparison = agreement.Agreement(task.has_classes)
    run = agreement.compared(harness.open_model(task.path, threads), harness.open_model(model, threads), comparison)
    return {"score": float(task.score(run)), **comparison.to_json()}


def measure(task: Task, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one task."""
    real = in_child(score_float, task.name)
    first = {"task": task.name, "unit": task.unit, "float_score": real.value}
    first |= {"float_bytes": task.path.stat().st_size, "calibration": arguments.calibration}
    first |= {"seed": arguments.seed, "pipeline": arguments.pipeline, "activations": arguments.activations}
    rows: list[dict[str, Any]] = []
    earlier = None
    suffix = "".join(f"-{vars(arguments)[name]}" for name, usual in USUAL.items() if vars(arguments)[name] != usual)
    for budget in arguments.budgets.split(","):
        folder = str(arguments.artifacts / f"{task.name}-{harness.slug(budget)}{suffix}")
        harness.say(f"{task.name} {budget}")
        built = in_child(build, task.name, budget, folder, earlier, arguments, timeout=arguments.timeout)
        row = {**first, "budget": budget, "how": "resolve" if earlier else "compile", **_built(built, task)}
        if "bytes" in row:
            earlier = earlier or folder
            row |= _scored(in_child(score_compiled, task.name, f"{folder}/model.onnx"), real, task)
        rows.append(row)
    return rows


def _built(outcome: Outcome, task: Task) -> dict[str, Any]:
    row: dict[str, Any] = {"seconds": outcome.seconds, "peak_mb": outcome.peak_mb}
    if outcome.value is None:
        return {**row, "note": f"failed: {outcome.error}"}
    size = task.path.stat().st_size
    if "smallest" in outcome.value:
        return {**row, **outcome.value, "note": infeasible(outcome.value["smallest"], size, outcome.value["blockers"])}
    written = outcome.value["bytes"]
    shares = {"share_of_float": written / size, "share_of_limit": written / outcome.value["limit"]}
    return {**row, **outcome.value, **shares}


def infeasible(smallest: int, size: int, blockers: list[Any]) -> str:
    """What an infeasible budget is answered with, in a line."""
    largest = ", ".join(f"{what} {count:,} B" for what, count in blockers[:BLOCKERS_SHOWN])
    return f"infeasible: at least {smallest:,} B ({100 * smallest / size:.2f} %): {largest}"


def _scored(outcome: Outcome, real: Outcome, task: Task) -> dict[str, Any]:
    if outcome.value is None:
        return {"note": f"not scored: {outcome.error}"}
    if real.value is None:
        return {**outcome.value, "note": f"float model not scored: {real.error}"}
    known = abs(real.value - task.float_score) <= KNOWN_WITHIN * abs(task.float_score)
    note = {} if known else {"note": f"the float score is known as {task.float_score:g}"}
    return {**outcome.value, "difference": outcome.value["score"] - real.value, **note}


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budgets", default="25%,13%", help="the first is compiled, the others are resolved from it")
    parser.add_argument("--calibration", choices=(REAL, SYNTHETIC), default=REAL, help="synthetic: no data at all")
    parser.add_argument("--seed", type=int, default=0, help="of the compile's draws")
    parser.add_argument("--pipeline", choices=("light", "advanced"), default="light")
    parser.add_argument("--activations", choices=("auto", "integer", "float", "float8"), default="auto")
    parser.add_argument("--formats", default="", help="families of formats to try for weights; default: the usual ones")
    parser.add_argument("--target", choices=("cpu",), help="build the native library as well")
    parser.add_argument("--artifacts", type=Path, default=RESULTS, help="where the compiled models are put")
    parser.add_argument("--cache", type=Path, help="a store of measurements to reuse; default: an empty one")
    parser.add_argument("--record", action="store_true", help="in the data that documents are written from, too")
    parser.add_argument("--record-formats", action="store_true", help="in the data on formats; with --formats")
    parser.add_argument("--record-calibration", action="store_true", help="in the data on calibration")
    parser.add_argument("--timeout", type=float, help="seconds that one compile may take")
    arguments = parser.parse_args()
    if arguments.record and (changed := [name for name, usual in USUAL.items() if vars(arguments)[name] != usual]):
        parser.error(f"--record is for compiles with default options: leave out --{', --'.join(changed)}")
    if arguments.record_formats and not arguments.formats:
        parser.error("--record-formats is for compiles with --formats; --record has those with the usual ones")
    return arguments


def main() -> None:
    arguments = parse()
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), []
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as empty:
        arguments.cache = str(arguments.cache or empty)
        for task in chosen(arguments.tasks):
            rows += measure(task, arguments)
            harness.write_results(arguments.out, rows, facts)
    harness.print_results(rows, COLUMNS, facts)
    if failed := [row["budget"] for row in rows if "score" not in row and "smallest" not in row]:
        raise SystemExit(f"not recorded, as {', '.join(failed)} failed")
    if arguments.record:
        unreachable = [(row["task"], row["budget"]) for row in rows if "smallest" in row]
        harness.forget(harness.FIGURES / "accuracy.json", unreachable)
        harness.record(harness.FIGURES / "accuracy.json", [_recorded(row) for row in rows if "score" in row], facts)
    if arguments.record_formats:
        about = {"formats": arguments.formats, "seed": arguments.seed}
        recorded = [{**_recorded(row), **about} for row in rows if "score" in row]
        harness.record(harness.FIGURES / "formats.json", recorded, facts, *about)
    if arguments.record_calibration:
        about = {"calibration": arguments.calibration}
        recorded = [{**_recorded(row), **about} for row in rows if "score" in row]
        harness.record(harness.FIGURES / "calibration.json", recorded, facts, *about)


def _recorded(row: dict[str, Any]) -> dict[str, Any]:
    """What documents say of a row."""
    present = {key: digits for key, digits in RECORDED.items() if row.get(key) is not None}
    return {key: round(row[key], digits) if digits else row[key] for key, digits in present.items()}


if __name__ == "__main__":
    main()
