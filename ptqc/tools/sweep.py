"""The measured frontier: files of many sizes from one measuring run, each built and compared with the float model.

A point is reconstructed once, on fewer samples and columns than a file that is delivered, so that it may lose a little
more than that would; points that are built together walk behind one float walk.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ptqc.artifact import folder as artifact
from ptqc.artifact.folder import Artifact
from ptqc.artifact.report import render
from ptqc.artifact.report.budgets import sweep_text
from ptqc.budget import AnyBudget, parse
from ptqc.codegen.onnxruntime.export import Exported
from ptqc.errors import UsageError
from ptqc.evaluation.judge import JUDGED_SAMPLES, judge, one_sample
from ptqc.execution.onnxruntime import Feeds
from ptqc.execution.speed import Subject, latencies
from ptqc.ir.plan import Plan, write_json
from ptqc.options import CompileOptions
from ptqc.passes.allocate.activations_in_float import rounding_of
from ptqc.passes.allocate.allocation import best_choice, smallest_choice
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.fit import PlanSearch
from ptqc.passes.allocate.problem import packed, problem_of
from ptqc.passes.effects import applied, check_tuned
from ptqc.passes.quantize.measure import recall
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.quantize.prepare import Origin
from ptqc.passes.reconstruct.reconstruct import ColumnLimits, Reconstruct, reconstruct_each
from ptqc.utils.deadline import Deadline
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress, Stage
from ptqc.utils.store import store_at
from ptqc.utils.threads import one_blas_thread

POINTS = 10
MOST_POINTS = 100
TOGETHER = 2
LIMITS = ColumnLimits(columns=1, samples=64)
SECONDS = 6.0  # of the comparison of speeds
TIMED_TOGETHER = 8
MILLISECOND = 1e6


@dataclass(frozen=True)
class Swept:
    """The frontier as it was measured. document: as in `sweep.json`."""

    artifact: Artifact
    document: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`: that of `sweep.json`."""
        return self.document

    def __str__(self) -> str:
        return sweep_text(self.document)


@dataclass(frozen=True)
class _Target:
    """A size to reach. budget: as it was given."""

    limit: int
    budget: str | None
    plan: Plan
    predicted: float


@quiet_libraries()
def sweep(
    folder: str | PathLike[str],
    *,
    points: int = POINTS,
    budgets: Sequence[AnyBudget] | None = None,
    cache: str | Path | None = None,
    time_limit: float = 0.0,
    progress: Progress = SILENT,
) -> Swept:
    """Measure divergence and latency at several sizes.

    Each size is built from the measurements of the artifact. The result is
    added to its folder as sweep.json and as a plot in the report.

    Args:
        folder: The artifact.
        points: How many sizes, from the smallest file to the best, evenly
            spread by ratio.
        budgets: Sizes to build instead, as `budget` of `ptqc.compile`.
        cache: Folder of the measurements; default: ~/.cache/ptqc.
        time_limit: Seconds after which no further size is begun; 0: none.
        progress: Shows progress, such as `ptqc.Lines()`.

    Returns:
        A row for each size: bytes, predicted and measured divergence, share
        of equal top classes, SQNR in dB, milliseconds; `print` it.

    Raises:
        UsageError: The measurements are not in the store any more.
        Infeasible: No file is as small as one of the budgets.

    Example:
        >>> print(ptqc.sweep("out", points=5))
    """
    deadline = Deadline.after(time_limit, time.monotonic())
    if not 2 <= points <= MOST_POINTS:
        raise UsageError(f"points is {points}; give a number from 2 to {MOST_POINTS}")
    requested = None if budgets is None else [_size(budget) for budget in budgets]
    result = artifact.load(folder)
    store = store_at(cache)
    with one_blas_thread():
        prepared, analysis, measured, _ = recall(store, result.manifest["measurements"], progress)
        written = {
            name: result.manifest["options"].get(name, getattr(measured, name)) for name in ("inline", "operators")
        }
        options = replace(measured, **written)
        if result.manifest.get("rounded_activations"):  # as in the artifact, so that points are of files like it
            analysis = applied(rounding_of(options), analysis).output
        targets = _targets(analysis, options, prepared.origin, requested, points)
        with progress.stage("measure the frontier", len(targets)) as stage:
            rows, files = _measured(analysis, options, targets, deadline, stage)
        with progress.stage("compare speeds"):
            times = _times(analysis, [file.proto for file in files])
    for row, nanoseconds in zip(rows, times[1:], strict=True):
        row["milliseconds"] = nanoseconds / MILLISECOND
    document = {
        "unit": analysis.loss_unit,
        "original_bytes": prepared.origin.size,
        "float_ms": times[0] / MILLISECOND,
        "runtime": "ONNX Runtime, one sample, one thread",
        "reconstruction": {"draws": 1, "samples": LIMITS.samples, "columns": LIMITS.columns},
        "asked": len(targets),
        "points": sorted(rows, key=lambda row: row["bytes"]),
    }
    return Swept(_published(result, document), document)


def _size(requested: AnyBudget) -> SizeBudget:
    budget = parse(requested)
    if not isinstance(budget, SizeBudget):
        raise UsageError(f"budget {requested!r} is not a size; a sweep takes sizes, such as 25% or 4.5MB")
    return budget


def _targets(
    analysis: Analysis, options: CompileOptions, origin: Origin, requested: Sequence[SizeBudget] | None, points: int
) -> list[_Target]:
    """Plans of the sizes that are asked for, or of sizes from the smallest to the best; each plan once."""
    problem = problem_of(analysis, analysis.undecided, options)
    limits: list[tuple[int, str | None]]
    if requested is not None:
        limits = [(budget.limit(origin.size, origin.weights), str(budget)) for budget in requested]
    else:
        ends = problem.size(smallest_choice(problem)), problem.size(best_choice(problem))
        limits = [(int(np.ceil(size)), None) for size in np.geomspace(*ends, points)]
    targets = list[_Target]()
    for limit, budget in limits:
        best = PlanSearch(analysis, options, limit, problem=problem, reserved=0).allocate()
        if all(best.plan != other.plan for other in targets):
            targets.append(_Target(limit, budget, best.plan, best.allocation.loss))
    return targets


def _measured(
    analysis: Analysis, options: CompileOptions, targets: Sequence[_Target], deadline: Deadline, stage: Stage
) -> tuple[list[dict[str, Any]], list[Exported]]:
    """What each target's file has and loses, and the files; every second one first, so that a part spans all sizes."""
    rows, files, began = list[dict[str, Any]](), list[Exported](), time.monotonic()
    order = [*targets[::2], *targets[1::2]]
    for done in range(0, len(order), TOGETHER):
        if done and not deadline.leaves((time.monotonic() - began) / done * TOGETHER):
            break
        now = order[done : done + TOGETHER]
        silent = replace(analysis, progress=SILENT)
        for target, tuned in zip(now, reconstruct_each(silent, [(t.plan, 0) for t in now], LIMITS), strict=True):
            check_tuned(Reconstruct.name, tuned)
            _, exported = packed(analysis, target.plan, tuned, options)
            rows.append(_row(analysis, target, exported))
            files.append(exported)
            stage.advance(f"{exported.size:,} bytes")
    return rows, files


def _row(analysis: Analysis, target: _Target, exported: Exported) -> dict[str, Any]:
    judged = judge(
        analysis.model, exported.proto, analysis.held_back.some(JUDGED_SAMPLES), analysis.kinds, None, SILENT
    )
    return {
        "budget": target.budget,
        "limit": target.limit,
        "bytes": exported.size,
        "predicted": target.predicted + analysis.activation_loss,
        "loss": judged.loss,
        "top1_agreement": judged.agreement,
        "sqnr_db": judged.sqnr,
        "held_back_samples": judged.samples,
    }


def _times(analysis: Analysis, files: Sequence[onnx.ModelProto]) -> list[float]:
    """Nanoseconds of one sample: of the float model, then of each file.

    Files take turns with the float model, a few at a time since each session holds its weights unpacked; a machine that
    slows down between such groups changes no ratio to the float model.
    """
    feeds: Feeds = one_sample(analysis.model, analysis.held_back)[0]
    groups = [files[start : start + TIMED_TOGETHER] for start in range(0, len(files), TIMED_TOGETHER)]
    first = Subject(analysis.model, feeds)
    subjects = ([first, *(Subject(file, feeds) for file in group)] for group in groups)
    times = [latencies(each, SECONDS / len(groups)) for each in subjects]
    original = float(np.median([turn[0] for turn in times]))
    return [original, *(original * one / turn[0] for turn in times for one in turn[1:])]


def _published(swept: Artifact, document: dict[str, Any]) -> Artifact:
    """The artifact with the frontier beside it, and its plot in the report."""
    report = render(swept.manifest, swept.plan, swept.sensitivity, swept.times, swept.most_changed, document).encode()
    files: dict[str, bytes | Path] = {name: swept.folder / name for name in swept.manifest["files"]}
    files |= {artifact.SWEEP: write_json(document).encode()}
    files.pop(artifact.REPORT, None)  # artifacts of earlier versions name it
    said = {key: value for key, value in swept.manifest.items() if key != "files"}
    apart = {artifact.RUN: write_json(swept.times).encode(), artifact.REPORT: report}
    return artifact.publish(swept.folder, files, said, apart, force=True)
