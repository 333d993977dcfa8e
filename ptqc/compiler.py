"""The whole compile on one page: read, rewrite, measure, choose, fit to the budget, verify, build, judge, publish.

The passes of each phase are in `ptqc.passes.schedule`, in their order.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Unpack

import onnx_ir as ir

from ptqc import losses, options
from ptqc.arguments import check_kind, path_of
from ptqc.artifact import folder as artifact
from ptqc.artifact import golden
from ptqc.artifact.folder import Artifact, check_output
from ptqc.budget import Budgets, Given
from ptqc.calibration.images import Preprocessing
from ptqc.codegen.onnxruntime.intent import Intent
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.targets import Chosen, TargetKeywords, choose
from ptqc.errors import UsageError
from ptqc.execute.onnxruntime import Feeds
from ptqc.options import CompileOptions, FloatLayers, Pipeline
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.lower import Lower
from ptqc.passes.registry import added_rewrites
from ptqc.plan import Plan
from ptqc.reading.given import Model, read_given
from ptqc.solvers.cost_model import Times
from ptqc.stages import documents
from ptqc.stages.documents import CompileOutcome
from ptqc.stages.fewer import affordable
from ptqc.stages.fit import Fitted, fit
from ptqc.stages.float_activations import fit_finite
from ptqc.stages.float_layers import with_float_layers
from ptqc.stages.foresee import check_foreseeable, check_score
from ptqc.stages.job import Job
from ptqc.stages.judge import Evaluate, judge
from ptqc.stages.judges import gather_apart, with_judges
from ptqc.stages.kept_loss import KeptLoss, tell_loss
from ptqc.stages.labels import Labelled, read_labels
from ptqc.stages.latency_budget import recorded_times, time_delivered, times_of, within_latency
from ptqc.stages.loss_budget import Given as GivenPlan
from ptqc.stages.loss_budget import criterion_of, fit_within_loss
from ptqc.stages.measure import measure, recall
from ptqc.stages.native import build_target, check_samples, check_target
from ptqc.stages.prepare import prepare
from ptqc.stages.promises import check_activations
from ptqc.stages.saturation import saturation_notes
from ptqc.stages.speed import measure_speed
from ptqc.store.entries import Store, default_folder
from ptqc.work.deadline import Deadline
from ptqc.work.logs import quiet_libraries
from ptqc.work.progress import SILENT, Progress
from ptqc.work.scratch import scratch
from ptqc.work.threads import one_blas_thread

VERIFIED_SAMPLES = 4
# Of the time that is left, where there is a limit; the rest is for what comes behind.
MEASURING, FITTING = 0.6, 0.5


class CompileKeywords(options.Keywords, TargetKeywords, total=False):
    """All options of `compile` by name, for type checkers."""


@dataclass(frozen=True)
class Delivery:
    """What is delivered of a job, and where to.

    evaluate, labelled: what gives a score. scratch: a folder for files on their way. times: of operators, which a
    latency is met with; None measures them. plan: fixed decisions, in place of solving.
    """

    output: Path
    force: bool
    target: Chosen | None
    evaluate: Evaluate | None
    labelled: Labelled | None
    store: Store
    scratch: Path
    progress: Progress
    times: Times | None = None
    plan: Plan | None = None
    dump: Dump = NO_DUMP


@quiet_libraries()
def compile(  # noqa: A001
    model: Model,
    *,
    calibration: object,
    output: str | Path,
    budget: Given = None,
    preprocessing: Preprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    dump_passes: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    times: str | Path | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
    **given: Unpack[CompileKeywords],
) -> Artifact:
    """Compile an ONNX model to a packed, verified artifact in the folder `output`.

    model: the path of a file, an `onnx.ModelProto` or an `onnx_ir.Model`. calibration: a folder of images, an
    .npz/.npy file, "module:function", an ONNX Runtime CalibrationDataReader, an array, any iterable of feeds, whose
    shapes may differ, or "synthetic": samples that ptqc draws, at a loss of accuracy. budget: "13%", 0.13, "4.5MB",
    4_500_000 (bytes), "4.2bit", "2ms", a loss ("0.02nat", "99%same", "1%drop"), or one of each; None: the best accuracy
    with as many layers on integer kernels as the activation options allow. A loss alone takes the smallest file.
    strict: raise Missed, and write nothing, where the file takes longer than the latency or is not shown to keep the
    loss. times: an artifact whose recorded times of operators a latency budget is met with; None measures them.
    labels: an .npz with inputs and `labels`, or a CSV of image,class; evaluate: called with run(feeds) -> outputs by
    name, gives a score. Both are for the report only. target: a folder of `ptqc.codegen` with what is built beside the
    ONNX file: "cpu" adds a native library. allow_missing_target: deliver the rest where it cannot be built. given:
    fields of `ptqc.options.CompileOptions`, and of the target's options (`ptqc.codegen.cpu.options.CpuOptions`).
    Raises the errors of `ptqc.errors`.
    """
    started = time.monotonic()
    known, parameters = CompileOptions.names(), signature(compile).parameters
    chosen = CompileOptions.of({name: value for name, value in given.items() if name in known})
    of_target = {name: value for name, value in given.items() if name not in known}
    built = choose(target, of_target, known, parameters, may_be_missing=allow_missing_target)
    budgets = Budgets.parse(budget, strict=strict)
    check_score(budgets, labels, evaluate)
    place = path_of("output", output)
    check_output(place, force)
    check_target(built)
    check_kind("preprocessing", preprocessing, Preprocessing)
    given_times = times_of(times) if times is not None else None
    if calibration is None:
        raise UsageError(
            "no calibration data: give a few hundred samples with --calibration DATA; "
            "without any, --calibration synthetic draws some, at a loss of accuracy"
        )
    dump = _dump(dump_passes)
    added = added_rewrites(chosen.rewrites)
    store, deadline = _store(cache), Deadline.after(chosen.time_limit, started)
    with one_blas_thread(), scratch() as temporary:
        folder = Path(temporary)
        source = read_given(model, folder, cast_double=chosen.cast_double)
        losses.check(source.model, chosen.loss)
        place_ = folder / "samples"
        samples, judging = gather_apart(source, calibration, place_, chosen, preprocessing, budgets.loss, progress)
        check_samples(built, samples)
        labelled = _labelled(source.model, labels, folder, preprocessing)
        prepared = affordable(replace(prepare(source, samples, progress, dump, added), judging=judging), deadline)
        check_foreseeable(prepared, budgets, chosen, built)
        decided, notes, entry = measure(prepared, chosen, store, progress, deadline.share(MEASURING), dump)
        job = Job(prepared, decided, chosen, (*prepared.notes, *notes), entry, budgets, started)
        delivery = Delivery(place, force, built, evaluate, labelled, store, folder, progress, given_times, dump=dump)
        return _deliver(job, delivery)


@quiet_libraries()
def resolve(
    folder: str | Path,
    *,
    output: str | Path,
    budget: Given = None,
    plan: Mapping[str, Any] | None = None,
    calibration: object = None,
    preprocessing: Preprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    target: str | None = None,
    allow_missing_target: bool = False,
    pipeline: Pipeline | None = None,
    time_limit: float = 0.0,
    float_layers: FloatLayers | None = None,
    inline: bool | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
    **given: Unpack[TargetKeywords],
) -> Artifact:
    """Another artifact from what an earlier compile measured: for another budget, or with a plan given as JSON.

    A latency is met with the times that the earlier compile recorded, where it did. calibration: samples that a budget
    of loss is judged on, but for those that were measured on; None: those that the earlier compile kept aside.
    pipeline, float_layers, inline: None takes that of the earlier compile. time_limit: see
    `ptqc.options.CompileOptions`; strict, target, allow_missing_target and given: see `compile`.
    Raises UsageError when the measurements are not in the store any more.
    """
    started = time.monotonic()
    budgets = Budgets.parse(budget, strict=strict)
    check_score(budgets, labels, evaluate)
    built = choose(target, given, signature(resolve).parameters, may_be_missing=allow_missing_target)
    place = path_of("output", output)
    check_output(place, force)
    check_target(built)
    earlier = artifact.load(folder).manifest
    entry, before = earlier["measurements"], earlier["options"]
    store = _store(cache)
    prepared, decided, measured, notes = recall(store, entry, progress)
    check_samples(built, prepared.samples)
    chosen = {
        "pipeline": pipeline or before["pipeline"],
        "float_layers": float_layers or before.get("float_layers", "auto"),
        "inline": before.get("inline", False) if inline is None else inline,
    }
    options_ = CompileOptions.of({**vars(measured), **chosen, "time_limit": time_limit})
    fixed = None if plan is None else Plan.from_json(plan, decided.roles)
    with one_blas_thread(), scratch() as temporary:
        folder = Path(temporary)
        if calibration is not None:
            prepared = with_judges(prepared, calibration, folder / "judging", preprocessing, budgets.loss)
        job = Job(prepared, decided, options_, (*prepared.notes, *notes), entry, budgets, started)
        labelled = _labelled(prepared.model, labels, folder, preprocessing)
        times = recorded_times(earlier)
        return _deliver(job, Delivery(place, force, built, evaluate, labelled, store, folder, progress, times, fixed))


def _deliver(job: Job, delivery: Delivery) -> Artifact:
    """What differs from budget to budget: choose, fit, verify, build, judge, publish."""
    progress, held_back = delivery.progress, job.decided.held_back
    job = within_latency(job, delivery.times, delivery.plan, progress)
    deadline = Deadline.after(job.options.time_limit, job.started)
    job, fitted, kept = _fit(job, delivery, deadline)  # allocate, reconstruct, lower, pack
    if kept is not None and job.budgets.strict:
        kept.check()
    delivery.dump.document("plan", fitted.plan.to_json())
    delivery.dump.model(Lower.name, fitted.lowered.model)
    probes, data = list(held_back.few(VERIFIED_SAMPLES)), fitted.exported.data
    with progress.stage("verify"):
        activation_loss, verified = _verify(job, fitted, probes)
    job = replace(job, notes=(*job.notes, *saturation_notes(fitted.exported, probes)))
    native = build_target(fitted, probes, delivery.target, delivery.store, delivery.scratch, progress)
    timed = time_delivered(job, fitted, progress)
    if timed is not None and job.budgets.strict:
        timed.check()
    score = delivery.evaluate or (delivery.labelled.top1 if delivery.labelled is not None else None)
    judged = judge(job.model, data, held_back, job.decided.kinds, score, progress)
    speed = measure_speed(job.model, data, held_back, progress, deadline)
    golds = golden.take(job.model, data, held_back)
    outcome = CompileOutcome(fitted, verified, activation_loss, native, timed, kept, judged, speed, *golds)
    files, manifest = documents.files(job, outcome)
    return artifact.publish(delivery.output, files, manifest, documents.times(job, outcome), delivery.force)


def _fit(job: Job, delivery: Delivery, deadline: Deadline) -> tuple[Job, Fitted, KeptLoss | None]:
    """The file within the budgets, the compile with the activations that it has, and how a loss is kept."""
    plan, budgets = delivery.plan, job.budgets
    criterion = criterion_of(job, delivery.labelled, delivery.evaluate)
    if criterion is None or budgets.loss is None:
        job = with_float_layers(job, delivery.target, plan)
        decided = replace(job.decided, deadline=deadline.share(FITTING))
        return *fit_finite(job, decided, plan, lambda known: fit(known, job.options, job.limit, plan)), None
    job, fitted, verdict = fit_within_loss(job, criterion, GivenPlan(plan, delivery.target, deadline, FITTING))
    return job, fitted, tell_loss(budgets.loss, verdict, job.decided.loss_unit)


def _verify(job: Job, fitted: Fitted, probes: list[Feeds]) -> tuple[float, Verified]:
    """The loss of the activations, and what was found of the file. Raises VerificationError."""
    loss = check_activations(job.decided, fitted.plan)
    intent = Intent(job.model, fitted.plan, fitted.tuned)
    return loss, verify(fitted.exported, fitted.lowered, intent, probes, job.limit)


def _dump(folder: str | Path | None) -> Dump:
    if folder is None:
        return NO_DUMP
    place = path_of("dump_passes", folder)
    try:
        return Dump(place)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place} that passes are dumped to: {error}") from error


def _store(cache: str | Path | None) -> Store:
    return Store(path_of("cache", cache) if cache is not None else default_folder())


def _labelled(
    model: ir.Model, labels: str | Path | None, folder: Path, preprocessing: Preprocessing | None
) -> Labelled | None:
    if labels is None:
        return None
    return read_labels(model, path_of("labels", labels), folder / "labelled", preprocessing)
