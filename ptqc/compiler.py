"""A compile from top to bottom: read, canonicalize, equalize, analyze, meet the budgets, verify, publish.

`ptqc.api` makes a request of what users give; `ptqc.passes.pipeline` lists the steps with their files.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

import onnx_ir as ir

from ptqc import losses
from ptqc.artifact import documents, golden
from ptqc.artifact import folder as artifact
from ptqc.artifact.build_target import build_target, check_samples
from ptqc.artifact.documents import CompileOutcome, check_activations
from ptqc.artifact.fit_for_use import check_budgets, check_fit, worse_than_predicted
from ptqc.artifact.folder import Artifact
from ptqc.calibration.images import Preprocessing
from ptqc.codegen.targets import Chosen
from ptqc.early_checks import check_detector, check_early
from ptqc.errors import TimeTooShort
from ptqc.evaluation.changed import most_changed
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.judge import JUDGED_SAMPLES, judge, measure_speed, saturation_notes
from ptqc.evaluation.labels import Labelled, LabelSource, read_labels
from ptqc.evaluation.scoring import OwnScore, Scoring, scoring_of
from ptqc.frontend.in_memory import Model, read_source
from ptqc.ir.plan import Plan
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.constraints.caches import CacheBudget
from ptqc.passes.allocate.constraints.criteria import DROP
from ptqc.passes.allocate.constraints.loss import LossBudget, gather_apart, with_judges
from ptqc.passes.allocate.cost_model import OpLatencies
from ptqc.passes.allocate.fit import VERIFIED_SAMPLES, verified
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.allocate.meet_budgets import meet_budgets
from ptqc.passes.allocate.state import Budgets, CompileState, Context
from ptqc.passes.analyze import SENSITIVITY_SHARE, Run, analyze
from ptqc.passes.base import Rewrite
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.equalize.equalize_channels import equalized
from ptqc.passes.equalize.order_for_pruning import ordered_for_pruning
from ptqc.passes.kv_cache.apply import with_packed_caches
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.quantize.prepare import CanonicalModel, affordable, prepare
from ptqc.utils.deadline import Deadline
from ptqc.utils.executors.base import Executor
from ptqc.utils.executors.threads import Threads
from ptqc.utils.memory import watched_memory
from ptqc.utils.progress import Progress
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store, clear_unfinished
from ptqc.utils.threads import one_blas_thread

# Of the time that is left, where there is a limit; the rest is for what comes behind.
MEASURING_SHARE = 0.6
# Share of the weights that are measured at least; below it guesses decide too much, and no file is made.
FLOOR = 0.5


@dataclass(frozen=True)
class CompileRequest:
    """What is asked of a compile, beside the model and its data.

    output, force: where the artifact goes, and whether it may replace another. labels, own_score: for scores. started:
    on the monotonic clock. executor: where units of work are done. times: of operators, which a latency is met
    with; None measures them. plan: fixed decisions, in place of solving. rewrites: of other
    packages. tokenizer: of texts, and detector: how boxes are written, for the report.
    """

    options: CompileOptions
    budgets: Budgets
    output: Path
    force: bool
    target: Chosen | None
    labels: LabelSource | None
    own_score: OwnScore | None
    preprocessing: Preprocessing | None
    store: Store
    progress: Progress
    started: float
    executor: Executor = field(default_factory=Threads)
    times: OpLatencies | None = None
    plan: Plan | None = None
    rewrites: Sequence[Rewrite] = ()
    tokenizer: Path | None = None
    detector: Detector | None = None
    dump: Dump = NO_DUMP

    @property
    def deadline(self) -> Deadline:
        """When the compile has to be done."""
        return Deadline.after(self.options.time_limit, self.started)

    def analyze(self, prepared: CanonicalModel) -> tuple[CanonicalModel, Analysis, list[Note], str]:
        """Measure the model once; every run, as after undoing a split, has the same share of the time that is left."""
        max_bytes = self.budgets.max_bytes(prepared.origin)
        in_library = self.target is not None and self.target.in_library

        def make_run() -> Run:
            deadline = self.deadline.share(MEASURING_SHARE)
            return Run(deadline, self.dump, self.executor, in_library=in_library, floor=FLOOR)

        return analyze(prepared, self.options, self.store, self.progress, max_bytes, self.deadline, make_run)

    def context(self, scoring: Scoring | None) -> Context:
        """What the budgets are met with."""
        return Context(self.progress, self.deadline, self.store, self.target, self.times, self.plan, scoring)

    def labelled(self, model: ir.Model, folder: Path, data: object) -> Labelled | None:
        """The labelled samples, where there are any. folder: for them. data: a CSV of labels may name images of it."""
        if self.labels is None:
            return None
        images = Path(data) if isinstance(data, str | PathLike) else None
        return read_labels(model, self.labels, folder / "labelled", self.preprocessing, self.detector, images)

    def scoring(self, model: ir.Model, labelled: Labelled | None) -> Scoring | None:
        """How files are scored beside the float model, which is scored here."""
        loss = self.budgets.get(LossBudget)
        counts_points = str(loss) if loss is not None and loss.unit == DROP else ""
        return scoring_of(model, self.own_score, labelled, counts_points, self.progress)


def compile_model(model: Model, calibration: object, request: CompileRequest) -> Artifact:
    """From a model and calibration data to an artifact. Raises the errors of `ptqc.errors`."""
    options, progress = request.options, request.progress
    with one_blas_thread(), scratch() as temporary, watched_memory() as memory, request.executor:
        clear_unfinished(request.store)
        folder = Path(temporary)
        source = read_source(model, folder, cast_double=options.cast_double)
        request = replace(request, store=replace(request.store, check=source.files.check))
        losses.check(source.model, options.loss)
        place = folder / "samples"
        loss, caches = request.budgets.get(LossBudget), request.budgets.get(CacheBudget)
        samples, judging = gather_apart(source, calibration, place, options, request.preprocessing, loss, progress)
        cached = with_packed_caches(source, samples, judging, options.kv_cache, caches, folder)
        source, samples, judging = cached.source, cached.samples, cached.judging
        labelled = request.labelled(source.model, folder, calibration)
        # Canonicalize.
        prepared = prepare(source, samples, progress, request.dump, request.rewrites)
        prepared = affordable(replace(prepared, judging=judging, caches=cached.description), request.deadline)
        check_samples(request.target, samples, prepared.model)
        check_early(prepared, request.budgets, options, request.target)
        check_detector(prepared, request.detector)
        scoring = request.scoring(prepared.model, labelled)
        # Scale and rotate channels; order them for pruning.
        prepared = equalized(prepared, options, request.store, request.deadline, progress)
        prepared = ordered_for_pruning(prepared, options, progress)
        # Calibrate, solve weights in every format, measure what each loses.
        try:
            prepared, analysis, notes, entry = request.analyze(prepared)
        except TimeTooShort as error:
            raise _too_short(error, options.time_limit, time.monotonic() - request.started) from None
        notes = [*prepared.notes, *(scoring.notes if scoring is not None else ()), *notes]
        job = CompileState(
            prepared, analysis, options, tuple(notes), entry, request.budgets, request.started, memory=memory
        )
        return _deliver(job, request, scoring, folder)


def _too_short(error: TimeTooShort, limit: float, taken: float) -> TimeTooShort:
    """What a compile needs that was cut short too much. limit: seconds that it had. taken: until now."""
    needed = max(error.seconds / (MEASURING_SHARE * SENSITIVITY_SHARE), taken + 2 * error.seconds, 2 * limit)
    advice = f"give --time-limit {math.ceil(needed)}s or so, or run it on a less busy machine; what was solved is kept"
    return TimeTooShort(f"the time limit of {limit:g} s is too short: {error}; {advice}", needed)


def resolve_job(job: CompileState, request: CompileRequest, calibration: object = None) -> Artifact:
    """Another artifact from what an earlier compile measured. calibration: samples that a loss is judged on."""
    with one_blas_thread(), scratch() as temporary, watched_memory() as memory:
        folder, job = Path(temporary), replace(job, memory=memory)
        if calibration is not None:
            place, loss = folder / "judging", request.budgets.get(LossBudget)
            prepared = with_judges(job.prepared, calibration, place, request.preprocessing, loss)
            job = replace(job, prepared=prepared)
        scoring = request.scoring(job.model, request.labelled(job.model, folder, calibration))
        if scoring is not None:
            job = replace(job, notes=(*job.notes, *scoring.notes))
        return _deliver(job, request, scoring, folder)


def _deliver(job: CompileState, request: CompileRequest, scoring: Scoring | None, folder: Path) -> Artifact:
    """Meet the budgets, verify and measure the file, build the target, publish the artifact. folder: for its parts."""
    progress, held_back, deadline = request.progress, job.analysis.held_back, request.deadline
    delivery = meet_budgets(job, request.context(scoring))
    job, fitted = delivery.job, delivery.fitted
    if job.budgets.strict:
        check_fit([*job.notes, *fitted.notes])
        check_budgets(delivery.reports)
    request.dump.document("plan", fitted.plan.to_json())
    request.dump.model(Lower.name, fitted.lowered.model)
    file = fitted.exported.proto
    with progress.stage("verify"):
        activation_loss = check_activations(job.analysis, fitted.plan)
        checks = verified(job, fitted)
    saturating = saturation_notes(fitted.exported, list(held_back.few(VERIFIED_SAMPLES)), job.options.runtime)
    job = replace(job, notes=(*job.notes, *saturating))
    native = build_target(fitted, job, request.target, request.store, folder, progress)
    judges = held_back.some(JUDGED_SAMPLES)
    judged = judge(job.model, file, judges, job.analysis.kinds, scoring, progress)
    if job.budgets.strict:
        check_fit(worse_than_predicted(job, fitted, judged, [*job.notes, *fitted.notes]))
    changed = most_changed(job.model, file, judges, job.analysis.kinds, judged, request.tokenizer, request.detector)
    speed = measure_speed(job.prepared.unsplit, file, held_back, progress, deadline)
    recorded = golden.take(job.model, file, held_back)
    outcome = CompileOutcome(
        fitted,
        checks,
        activation_loss,
        native,
        delivery.reports,
        judged,
        changed,
        request.detector,
        speed,
        *recorded,
    )
    said = documents.documents_of(job, outcome)
    files = documents.files(outcome, said, folder)
    request.store.check()  # else what is written is of other files than the digest
    return artifact.publish(request.output, files, said.manifest, documents.apart(job, outcome, said), request.force)
