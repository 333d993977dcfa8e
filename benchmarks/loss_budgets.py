"""Compile every task for budgets of loss, and measure on evaluation data whether the files keep them.

python benchmarks/loss_budgets.py [--tasks a,b] [--budgets 99%same,0.01] [--samples 256] [--seed 0] [--out results.json]
                                  [--record]

A number without a unit takes the unit that the task's outputs are judged in. All calibration samples that a task has
are given; those beyond --samples judge. "by prediction": bytes of the plan that the prediction alone would have given.
--record puts the rows into figures/loss_budgets.json.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
from agreement import compared
from harness import Column, in_child, number, percent
from tasks import chosen

EVERY_SAMPLE = 10**5
REFERENCES = 64
UNITS = ("nat", "relative", "nat/detection", "cosine")
COLUMNS = (
    Column("task", "task"),
    Column("budget", "budget"),
    Column("bytes", "bytes", number(0)),
    Column("of float", "share", percent(2)),
    Column("by prediction", "predicted_bytes", number(0)),
    Column("smaller by", "smaller", percent(1)),
    Column("rounds", "rounds", number(0)),
    Column("judges", "judges", number(0)),
    Column("judged", "judged"),
    Column("bound", "bound"),
    Column("shown", "shown"),
    Column("evaluation", "evaluation"),
    Column("kept there", "kept_there"),
    Column("seconds", "seconds", number(0)),
    Column("note", "note"),
)


class Evaluation:
    """What a file loses on the runs of an evaluation, counted as its budget counts."""

    def __init__(self, kinds: dict[str, Any], names: Sequence[str]) -> None:
        self._kinds, self._names = kinds, list(names)
        self._waiting: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
        self._loss: Any = None
        self._losses: list[tuple[float, int]] = []
        self._differing: list[dict[str, tuple[int, int]]] = []

    def add(self, real: Sequence[np.ndarray], tested: Sequence[np.ndarray]) -> None:
        """One run of both models."""
        self._waiting.append((dict(zip(self._names, real, strict=True)), dict(zip(self._names, tested, strict=True))))
        if self._loss is not None or len(self._waiting) == REFERENCES:
            self._count()

    def _count(self) -> None:
        from ptqc.losses import OutputLoss
        from ptqc.passes.allocate.constraints.criteria import differing_classes

        if self._loss is None:
            self._loss = OutputLoss.of(self._kinds, [real for real, _ in self._waiting])
        for real, tested in self._waiting:
            self._losses.append((self._loss(real, tested), self._loss.size(real, tested)))
            self._differing.append(differing_classes(self._kinds, real, tested))
        self._waiting.clear()

    def lost(self, unit: str) -> float:
        """The share of differing top classes, or the mean loss."""
        if self._waiting:
            self._count()
        if unit == "%same":
            from ptqc.passes.allocate.constraints.criteria import most_differing

            differing, predictions = np.sum(most_differing(self._differing), axis=0)
            return float(differing / predictions)
        losses, sizes = np.array(self._losses).T
        return float((losses * sizes).mean() / sizes.mean())


def build(name: str, budget: str, folder: str, cache: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile a task; runs in a child."""
    from ptqc import compile as compile_model
    from ptqc.errors import UsageError

    task, started = chosen(name)[0], time.monotonic()
    feeds = task.calibration(EVERY_SAMPLE if arguments.judges is None else arguments.samples + arguments.judges)
    for unit in UNITS if budget[-1].isdigit() else ("",):
        try:
            options: dict[str, Any] = {
                "samples": arguments.samples,
                "seed": arguments.seed,
                "cache": cache,
                "force": True,
            }
            artifact = compile_model(task.path, calibration=feeds, output=folder, budget=budget + unit, **options)
            break
        except UsageError as error:
            refused = error
    else:
        raise refused
    return {
        **artifact.manifest["loss_budget"],
        "bytes": artifact.path.stat().st_size,
        "seconds": time.monotonic() - started,
    }


def evaluate(name: str, folder: str, unit: str) -> float:
    """What the file of an artifact loses on evaluation data; runs in a child."""
    import onnxruntime as ort

    from ptqc.losses import from_json

    task, model = chosen(name)[0], Path(folder) / "model.onnx"
    outputs = harness.manifest(Path(folder))["results"]["outputs"]
    judged = ("name", "judged_as", "top1_agreement", "loss", "loss_unit", "losses", "units", "figures")
    fields = (*judged, "sqnr_db", "sqnr_db_by_group")
    kinds = from_json({one["name"]: {k: v for k, v in one.items() if k not in fields} for one in outputs})
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    counted = Evaluation(kinds, [value.name for value in session.get_outputs()])
    task.score(compared(harness.open_model(task.path), harness.open_model(model), counted))
    return counted.lost(unit)


def measure(name: str, budget: str, place: Path, cache: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of a task and a budget."""
    folder = str(place / f"{name}-{harness.slug(budget)}")
    harness.say(f"{name}: {budget}")
    built = in_child(build, name, budget, folder, cache, arguments)
    row: dict[str, Any] = {"task": name, "budget": budget}
    if built.value is None:
        return {**row, "note": built.error}
    report = built.value
    predicted, judged, limit = report["rounds"][0]["bytes"], report["judged"], report["limit"]
    row |= {
        "budget": report["budget"],
        "bytes": report["bytes"],
        "share": report["bytes"] / chosen(name)[0].path.stat().st_size,
        "predicted_bytes": predicted,
        "smaller": 1 - predicted / report["bytes"],
        "rounds": len(report["rounds"]),
        "judges": judged["samples"],
        "judged": _shown(judged["lost"], report["unit"]),
        "bound": _shown(judged["bound"], report["unit"]),
        "shown": "yes" if report["kept"] else _needed(report),
        "seconds": report["seconds"],
    }
    outcome = in_child(evaluate, name, folder, report["unit"])
    if outcome.value is None:
        return {**row, "note": outcome.error}
    is_kept = outcome.value <= limit
    return {**row, "evaluation": _shown(outcome.value, report["unit"]), "kept_there": "yes" if is_kept else "MISSED"}


def _shown(lost: float | None, unit: str) -> str:
    if lost is None:  # too few judges for a bound
        return "–"
    return f"{100 * (1 - lost):.2f} %" if unit == "%same" else f"{lost:.3g}"


def _needed(report: dict[str, Any]) -> str:
    return "no" if report["samples_needed"] is None else f"no: needs {report['samples_needed']:,} judges"


def parse() -> argparse.Namespace:
    parser = harness.command_line_of_tasks(__doc__)
    parser.add_argument("--budgets", default="99%same,0.01")
    parser.add_argument("--seed", type=int, default=0, help="of the compile's draws")
    parser.add_argument("--judges", type=int, help="samples given beyond --samples; default: all there are")
    parser.add_argument("--artifacts", type=Path, default=harness.RESULTS, help="where the compiled models are put")
    parser.add_argument("--cache", type=Path, help="a store of measurements to reuse; default: an empty one")
    parser.add_argument("--record", action="store_true", help="put the rows into figures/loss_budgets.json")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    facts, rows = harness.machine(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="ptqc-bench-") as empty:
        cache = str(arguments.cache or empty)
        for task in chosen(arguments.tasks):
            for budget in arguments.budgets.split(","):
                rows.append(measure(task.name, budget, arguments.artifacts, cache, arguments))
                harness.write_results(arguments.out, rows, facts)
    if arguments.record:
        harness.record(harness.FIGURES / "loss_budgets.json", rows, facts)
    harness.print_results(rows, COLUMNS, facts)


if __name__ == "__main__":
    main()
