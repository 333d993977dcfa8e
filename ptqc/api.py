"""`ptqc.compile` and `ptqc.resolve`: what users give, checked, as a request to the compiler."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ptqc import options
from ptqc.artifact import folder as artifact
from ptqc.artifact.build_target import check_samples, check_target
from ptqc.artifact.folder import Artifact, check_output, reserved
from ptqc.artifact.recorded_times import times_of
from ptqc.budget import Given, parse_budgets
from ptqc.calibration.images import AnyPreprocessing, Preprocessing
from ptqc.calibration.module_example import exported, is_module
from ptqc.calibration.texts import Texts
from ptqc.codegen.targets import TargetKeywords, choose
from ptqc.compiler import CompileRequest, compile_model, resolve_job
from ptqc.errors import UsageError
from ptqc.evaluation.detection.detector import AnyDetector, Detector
from ptqc.evaluation.scoring import Evaluate, OwnScore
from ptqc.frontend.in_memory import Model
from ptqc.ir.plan import Plan
from ptqc.ir.runtimes import RULES as RUNTIMES
from ptqc.options import CompileOptions, Phase
from ptqc.passes.allocate.constraints.latency import LatencyBudget, fitting_times
from ptqc.passes.allocate.state import CompileState
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.quantize.measure import recall
from ptqc.passes.registry import added_rewrites, check_extensions
from ptqc.utils.arguments import path_of, shown
from ptqc.utils.executors.registry import DEFAULT, executor_of
from ptqc.utils.logs import quiet_libraries
from ptqc.utils.progress import SILENT, Progress, check_progress
from ptqc.utils.store import store_at

if TYPE_CHECKING:
    import torch


class CompileKeywords(options.Keywords, TargetKeywords, total=False):
    """All options of `compile` by name, for type checkers."""


class ResolveKeywords(options.FitKeywords, TargetKeywords, total=False):
    """All options of `resolve` by name, for type checkers."""


@quiet_libraries()
def compile(  # noqa: A001
    model: "Model | torch.nn.Module",
    *,
    calibration: object,
    output: str | Path,
    budget: Given = None,
    preprocessing: AnyPreprocessing | None = None,
    detector: AnyDetector | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    perfect_score: float | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    dump_passes: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    times: str | PathLike[str] | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
    executor: str = DEFAULT,
    workers: int = 0,
    **given: Unpack[CompileKeywords],
) -> Artifact:
    """Compile an ONNX model to a packed, verified artifact in the folder `output`.

    model: the path or the bytes of a file, an `onnx.ModelProto`, an `onnx_ir.Model`, a PyTorch module whose arguments
    arrays and feeds of the calibration data show, or what `ptqc.from_torch` makes of one. calibration: a folder of
    images, an .npz/.npy file, "module:function", an ONNX Runtime CalibrationDataReader, an array, any iterable of feeds
    or batches, whose shapes may differ, or "synthetic": samples that ptqc draws, at a loss of accuracy. budget: "13%",
    0.13, "4.5MB", 4_500_000 (bytes), "4.2bit", "2ms" (in ONNX Runtime), "2ms@cpu" (in the library of target "cpu"),
    "50us@cuda" (predicted, in that of target "cuda"), "60MBram", "64KBflash" (of target "c"), "25%cache", a loss
    ("0.02nat", "99%same", "1%drop"), or one of each; None: the best accuracy with as many layers on integer kernels as
    the activation options allow. A loss alone takes the smallest file. strict: raise Missed, and write nothing, where
    the file takes longer or more memory than its budgets, or is not shown to keep the loss. times: reuse the operator
    times that this artifact recorded for a latency budget; None measures them. preprocessing: how images are prepared,
    or the name of a preset, such as "imagenet". detector: how a detector writes what it finds, or the name of a preset,
    such as "yolov8"; for the report, labels and later evaluations. labels: an .npz with inputs and `labels`, or a CSV
    of image,class, for top-1 accuracy; a folder of images with labels as YOLO writes them, or a COCO file with the
    images below its folder, for a detector's mean average precision. evaluate: called with run(feeds) -> outputs by
    name, gives a score, the higher the better; perfect_score: what it gives a perfect model, such as 1, where that is
    not percent. labels and evaluate are for the report, and for a budget such as "1%drop", whose points are percent.
    target: a folder of `ptqc.codegen` with what is built beside the ONNX file: "cpu" adds a native library.
    allow_missing_target: deliver the rest where it cannot be built. executor: where weights are solved: "threads" or
    "processes" of this machine, "ray" for a Ray cluster of this machine, or "ray://host:port"; the bytes are the same.
    workers: how many at a time; 0: one for each processor. given: fields of `ptqc.options.CompileOptions`, and of the
    target's options (`ptqc.codegen.cpu.options.CpuOptions`). Raises the errors of `ptqc.errors`.
    """
    started = time.monotonic()
    check_extensions()
    check_progress(progress)
    known, parameters = CompileOptions.names(), signature(compile).parameters
    stated, of_target = _apart(given, known)
    implied = {"runtime": target} if target in RUNTIMES else {}  # a target for one runtime
    chosen = CompileOptions.of({**implied, **stated})
    built = choose(target, of_target, known, parameters, may_be_missing=allow_missing_target)
    budgets = parse_budgets(budget, strict=strict).for_target(built)
    own_score = _own_score(evaluate, perfect_score)
    place = path_of("output", output)
    check_output(place, force)
    check_target(built)
    store = store_at(cache)
    budgets.check_request(built, store, is_scored=labels is not None or evaluate is not None)
    solving = executor_of(executor, workers, store)
    preprocessing, detector = Preprocessing.of(preprocessing), Detector.of(detector)
    given_times = times_of(times) if times is not None else None
    if calibration is None:
        raise UsageError(
            "no calibration data: give a few hundred samples with --calibration DATA; "
            "if you have none, --calibration synthetic generates some, at a loss of accuracy"
        )
    if is_module(model):
        model, calibration = exported(model, calibration)
    request = CompileRequest(
        options=chosen,
        budgets=budgets,
        output=place,
        force=force,
        target=built,
        labels=_labels(labels),
        own_score=own_score,
        preprocessing=preprocessing,
        detector=detector,
        dump=_dump(dump_passes),
        rewrites=added_rewrites(chosen.rewrites),
        tokenizer=_tokenizer(calibration),
        store=store,
        executor=solving,
        progress=progress,
        started=started,
        times=given_times,
    )
    with reserved(place):
        return compile_model(model, calibration, request)


@quiet_libraries()
def resolve(
    folder: str | PathLike[str],
    *,
    output: str | Path,
    budget: Given = None,
    plan: Mapping[str, Any] | None = None,
    data: object = None,
    preprocessing: AnyPreprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    perfect_score: float | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    progress: Progress = SILENT,
    strict: bool = False,
    **given: Unpack[ResolveKeywords],
) -> Artifact:
    """Another artifact from what an earlier compile measured: for another budget, or with a plan given as JSON.

    Weights are reconstructed once, with the draw of the data that was best in the earlier compile. Give `pipeline` to
    try all draws, which takes twice as long or more and may lose less. A latency is met with the times that the earlier
    compile recorded, where it did. data: samples on which a loss budget is judged, but for those that were measured on;
    None: those that the earlier compile kept aside.
    given: the options of `ptqc.options.FitKeywords`, of which those that are left out, or None, are as in the earlier
    compile, but for the time limit; and of the target. strict, target and allow_missing_target: see `compile`.
    Raises UsageError when the measurements are not in the store any more.
    """
    started = time.monotonic()
    check_extensions()
    check_progress(progress)
    budgets = parse_budgets(budget, strict=strict)
    for constraint in budgets:
        if constraint.is_measured:
            raise UsageError(f"the budget {constraint} changes what is measured: give it to `ptqc compile`")
    own_score = _own_score(evaluate, perfect_score)
    fitting = CompileOptions.names(Phase.FIT)
    if fixed := sorted(given.keys() & (set(CompileOptions.names()) - set(fitting))):
        raise UsageError(f"give {', '.join(fixed)} to `ptqc compile`: `ptqc resolve` keeps what was compiled")
    stated, of_target = _apart(given, fitting)
    built = choose(target, of_target, fitting, signature(resolve).parameters, may_be_missing=allow_missing_target)
    place = path_of("output", output)
    check_output(place, force)
    check_target(built)
    store = store_at(cache)
    budgets = budgets.for_target(built)
    budgets.check_request(built, store, is_scored=labels is not None or evaluate is not None)
    opened = artifact.load(folder)
    earlier = opened.manifest
    preprocessing = Preprocessing.of(preprocessing) or opened.preprocessing
    entry, before = earlier["measurements"], earlier["options"]
    prepared, analysis, measured, notes = recall(store, entry, progress)
    prepared = replace(prepared, samples=replace(prepared.samples, preprocessing=preprocessing))
    check_samples(built, prepared.samples, prepared.model)
    kept = {name: before[name] for name in fitting if name in before and name != "time_limit"}
    kept |= {name: value for name, value in stated.items() if value is not None}
    best = earlier["allocation"].get("draw")
    if best is not None and stated.get("pipeline") is None:
        analysis = replace(analysis, draws=(best,))
    job = CompileState(
        prepared,
        analysis,
        CompileOptions.of({**vars(measured), "time_limit": 0.0, **kept}),
        (*prepared.notes, *notes),
        entry,
        budgets,
        started,
    )
    request = CompileRequest(
        options=job.options,
        budgets=budgets,
        output=place,
        force=force,
        target=built,
        labels=_labels(labels),
        own_score=own_score,
        preprocessing=preprocessing,
        detector=opened.detector,
        store=store,
        progress=progress,
        started=started,
        times=fitting_times(earlier, budgets.get(LatencyBudget), job.options),
        tokenizer=_tokenizer(data),
        plan=None if plan is None else Plan.from_json(plan, analysis.roles),
    )
    with reserved(place):
        return resolve_job(job, request, data)


def _apart(values: Mapping[str, Any], known: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of ptqc's own, and those of a target."""
    stated = {name: value for name, value in values.items() if name in known}
    return stated, {name: value for name, value in values.items() if name not in known}


def _own_score(evaluate: object, perfect: object) -> OwnScore | None:
    """Raises UsageError for what is no function, and for a scale that is no number above 0."""
    if evaluate is not None and not callable(evaluate):
        raise UsageError(
            f"evaluate is {shown(evaluate)}; give a function of run, where run(feeds) gives outputs by name"
        )
    if perfect is None:
        return None if evaluate is None else OwnScore(evaluate)
    if evaluate is None:
        raise UsageError(f"perfect_score is {shown(perfect)}, which is of evaluate: give evaluate, too")
    if isinstance(perfect, bool) or not isinstance(perfect, Real) or not 0 < float(perfect) < math.inf:
        raise UsageError(
            f"perfect_score is {shown(perfect)}; give what evaluate gives a perfect model, such as 1 or 100"
        )
    return OwnScore(evaluate, float(perfect))


def _labels(labels: str | Path | None) -> Path | None:
    return None if labels is None else path_of("labels", labels)


def _tokenizer(calibration: object) -> Path | None:
    return Path(calibration.tokenizer) if isinstance(calibration, Texts) else None


def _dump(folder: str | Path | None) -> Dump:
    if folder is None:
        return NO_DUMP
    place = path_of("dump_passes", folder)
    try:
        return Dump(place)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place} for --dump-passes: {error}") from error
