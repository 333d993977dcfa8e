"""The story of a compile: read, normal form, measure, fit to the budget, verify, judge, publish."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Unpack

import onnx_ir as ir
from threadpoolctl import threadpool_limits

from ptqc import losses
from ptqc.arguments import check_kind, path_of
from ptqc.artifact import folder as artifact
from ptqc.artifact import golden
from ptqc.artifact.folder import Artifact, check_output
from ptqc.budget import Budgets, Given
from ptqc.calibration.images import Preprocessing
from ptqc.codegen.onnxruntime.intent import Intent
from ptqc.codegen.onnxruntime.verify import verify
from ptqc.errors import UsageError
from ptqc.options import DEFAULT_CPU, NOT_TUNED, CompileOptions, FloatLayers, Keywords, Pipeline, TargetOptions
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.lower import Lower
from ptqc.passes.registry import added_rewrites
from ptqc.plan import Plan, write_json
from ptqc.reading.given import Model, read_given
from ptqc.report import render
from ptqc.solvers.cost_model import Times
from ptqc.stages import documents
from ptqc.stages.documents import Job
from ptqc.stages.fewer import affordable
from ptqc.stages.fit import fit
from ptqc.stages.float_layers import with_float_layers
from ptqc.stages.foresee import check_foreseeable
from ptqc.stages.judge import Evaluate, judge
from ptqc.stages.labels import read_labels
from ptqc.stages.latency_budget import recorded_times, time_delivered, times_of, within_latency
from ptqc.stages.measure import measure, recall
from ptqc.stages.native import build_targets, check_samples, check_target
from ptqc.stages.prepare import gather, prepare
from ptqc.stages.promises import check_activations, check_documents
from ptqc.stages.saturation import saturation_notes
from ptqc.stages.speed import measure_speed
from ptqc.store.entries import Store, default_folder
from ptqc.work.deadline import Deadline
from ptqc.work.logs import quiet_libraries
from ptqc.work.progress import SILENT, Progress
from ptqc.work.scratch import scratch

VERIFIED_SAMPLES = 4
# Of the time that is left, where there is a limit; the rest is for what comes behind.
MEASURING, FITTING = 0.6, 0.5


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
    target: Literal["cpu"] | None = None,
    cpu: str = DEFAULT_CPU,
    allow_missing_target: bool = False,
    tune: str | Path = NOT_TUNED,
    times: str | Path | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
    **options: Unpack[Keywords],
) -> Artifact:
    """Compile an ONNX model to a packed, verified artifact in the folder `output`.

    model: the path of a file, an `onnx.ModelProto` or an `onnx_ir.Model`. calibration: a folder of images, an
    .npz/.npy file, "module:function", an ONNX Runtime CalibrationDataReader, an array, any iterable of feeds, whose
    shapes may differ, or "synthetic": samples that ptqc draws, at a loss of accuracy. budget: "13%", 0.13, "4.5MB",
    4_500_000 (bytes), "4.2bit", "2ms" or a size and a latency; None: the best accuracy with as many layers on integer
    kernels as the activation options allow. strict: raise Missed, and write nothing, where the file takes longer than
    the latency. times: an artifact whose recorded times of operators a latency budget is met with; None measures them.
    labels: an .npz with inputs and `labels`, or a CSV of image,class; evaluate: called with run(feeds) -> outputs by
    name, gives a score. Both are for the report only. target, cpu, allow_missing_target, tune: see
    `ptqc.options.TargetOptions`. options: fields of `ptqc.options.CompileOptions`.
    Raises the errors of `ptqc.errors`.
    """
    started = time.monotonic()
    chosen = CompileOptions.of(options, signature(compile).parameters)
    targets = TargetOptions(target, cpu, allow_missing_target, tune)
    budgets = Budgets.parse(budget, strict=strict)
    place = path_of("output", output)
    check_output(place, force)
    check_target(targets)
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
    with _one_blas_thread(), scratch() as temporary:
        folder = Path(temporary)
        source = read_given(model, folder, cast_double=chosen.cast_double)
        losses.check(source.model, chosen.loss)
        samples = gather(source, calibration, folder / "samples", chosen.samples, preprocessing, progress, chosen.seed)
        check_samples(targets, samples)
        score = evaluate or _scorer(source.model, labels, folder, preprocessing)
        prepared = affordable(prepare(source, samples, progress, dump, added), deadline)
        check_foreseeable(prepared, budgets, chosen, targets)
        decided, notes, entry = measure(prepared, chosen, store, progress, deadline.share(MEASURING), dump)
        job = Job(prepared, decided, chosen, (*prepared.notes, *notes), entry, budgets, started)
        return _finish(job, place, score, force, progress, targets, store, given_times, dump=dump)


@quiet_libraries()
def resolve(
    folder: str | Path,
    *,
    output: str | Path,
    budget: Given = None,
    plan: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    labels: str | Path | None = None,
    evaluate: Evaluate | None = None,
    force: bool = False,
    cache: str | Path | None = None,
    target: Literal["cpu"] | None = None,
    cpu: str = DEFAULT_CPU,
    allow_missing_target: bool = False,
    tune: str | Path = NOT_TUNED,
    pipeline: Pipeline | None = None,
    time_limit: float = 0.0,
    float_layers: FloatLayers | None = None,
    inline: bool | None = None,
    progress: Progress = SILENT,
    strict: bool = False,
) -> Artifact:
    """Another artifact from what an earlier compile measured: for another budget, or with a plan given as JSON.

    A latency is met with the times that the earlier compile recorded, where it did. pipeline, float_layers, inline:
    None takes that of the earlier compile. time_limit: see `ptqc.options.CompileOptions`; strict: see `compile`.
    Raises UsageError when the measurements are not in the store any more.
    """
    started = time.monotonic()
    budgets = Budgets.parse(budget, strict=strict)
    targets = TargetOptions(target, cpu, allow_missing_target, tune)
    place = path_of("output", output)
    check_output(place, force)
    check_target(targets)
    earlier = artifact.load(folder).manifest
    entry, before = earlier["measurements"], earlier["options"]
    store = _store(cache)
    prepared, decided, measured, notes = recall(store, entry, progress)
    check_samples(targets, prepared.samples)
    chosen = {
        "pipeline": pipeline or before["pipeline"],
        "float_layers": float_layers or before.get("float_layers", "auto"),
        "inline": before.get("inline", False) if inline is None else inline,
    }
    options = CompileOptions.of({**vars(measured), **chosen, "time_limit": time_limit})
    job = Job(prepared, decided, options, (*prepared.notes, *notes), entry, budgets, started)
    given = None if plan is None else Plan.from_json(plan, decided.roles)
    with _one_blas_thread(), scratch() as temporary:
        score = evaluate or _scorer(prepared.model, labels, Path(temporary), preprocessing)
        return _finish(job, place, score, force, progress, targets, store, recorded_times(earlier), given)


def _one_blas_thread() -> AbstractContextManager[object]:
    """One thread for NumPy's products: their rounding, and with it the delivered bytes, depends on the number."""
    limits: AbstractContextManager[object] = threadpool_limits(1, "blas")
    return limits


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


def _scorer(
    model: ir.Model, labels: str | Path | None, folder: Path, preprocessing: Preprocessing | None
) -> Evaluate | None:
    if labels is None:
        return None
    return read_labels(model, path_of("labels", labels), folder / "labelled", preprocessing).top1


def _finish(
    job: Job,
    output: Path,
    evaluate: Evaluate | None,
    force: bool,
    progress: Progress,
    targets: TargetOptions,
    store: Store,
    times: Times | None,
    given: Plan | None = None,
    dump: Dump = NO_DUMP,
) -> Artifact:
    """Choose for the latency and the float layers, fit, verify, judge, publish."""
    job = with_float_layers(within_latency(job, times, given, progress), targets, given)
    model, held_back = job.prepared.model, job.decided.held_back
    deadline = Deadline.after(job.options.time_limit, job.started)
    decided = replace(job.decided, deadline=deadline.share(FITTING))
    fitted = fit(model, decided, job.options, job.limit, given)
    dump.document("plan", fitted.plan.to_json())
    dump.model(Lower.name, fitted.lowered.model)
    with progress.stage("verify"):
        probes = list(held_back.few(VERIFIED_SAMPLES))
        activations = check_activations(decided, fitted.plan)
        verified = verify(fitted.exported, fitted.lowered, Intent(model, fitted.plan, fitted.tuned), probes, job.limit)
    job = replace(job, notes=(*job.notes, *saturation_notes(fitted.exported, probes)))
    native = build_targets(fitted, probes, targets, store, progress)
    delivered = time_delivered(job, fitted, progress)
    if delivered is not None and job.budgets.strict:
        delivered.check()
    judged = judge(model, fitted.exported.data, held_back, decided.kinds, evaluate, progress)
    speed = measure_speed(model, fitted.exported.data, held_back, progress, deadline)
    kept, distances = golden.take(model, fitted.exported.data, held_back)
    manifest = {
        **documents.manifest(job, fitted, verified, judged, delivered),
        "activation_loss": activations,
        "golden": {"samples": len(kept.inputs), "distances": distances},
        "targets": dict(native.documents),
    }
    sensitivity, plan = documents.sensitivity(job, fitted), fitted.plan.to_json()
    check_documents(manifest, plan, fitted)
    files = {
        artifact.MODEL: fitted.exported.data,
        artifact.PLAN: write_json(plan).encode(),
        artifact.SENSITIVITY: write_json(sensitivity).encode(),
        artifact.REPORT: render(manifest, plan, sensitivity).encode(),
        artifact.GOLDEN: kept.to_bytes(),
        **native.files,
    }
    return artifact.publish(output, files, manifest, documents.times(job, verified, speed), force)
