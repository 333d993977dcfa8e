"""The whole compile on one page: each line of it is a pass (`ptqc.passes`) or a stage (`ptqc.passes.allocate`).

`ptqc.api` makes a request of what users give.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ptqc import losses
from ptqc.artifact import documents, golden
from ptqc.artifact import folder as artifact
from ptqc.artifact.build_target import VERIFIED_SAMPLES, build_target, check_samples
from ptqc.artifact.documents import CompileOutcome, check_activations
from ptqc.artifact.fit_for_use import check_fit, worse_than_predicted
from ptqc.artifact.folder import Artifact
from ptqc.budget import Budgets
from ptqc.calibration.images import Preprocessing
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.codegen.targets import Chosen
from ptqc.early_checks import check_detector, check_early
from ptqc.errors import Infeasible, InternalError, TimeTooShort
from ptqc.evaluation.changed import most_changed
from ptqc.evaluation.detection.detector import Detector
from ptqc.evaluation.judge import judge, measure_speed, saturation_notes
from ptqc.evaluation.labels import Labelled, read_labels
from ptqc.evaluation.scoring import OwnScore, Scoring, scoring_of
from ptqc.execution.onnxruntime import Feeds
from ptqc.frontend.in_memory import Model, read_given
from ptqc.ir.external import is_in_files
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import TunedNumbers
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.activations_in_float import fit_finite, with_float_layers
from ptqc.passes.allocate.choose_activations import ChooseActivations
from ptqc.passes.allocate.constraints.clocks import OnnxRuntimeClock
from ptqc.passes.allocate.constraints.latency import Clock, chosen_again, time_delivered, within_latency
from ptqc.passes.allocate.constraints.loss import (
    Fitting,
    KeptLoss,
    criterion_of,
    fit_within_loss,
    gather_apart,
    tell_loss,
    with_judges,
)
from ptqc.passes.allocate.constraints.memory import memory_report, within_memory
from ptqc.passes.allocate.cost_model import Times
from ptqc.passes.allocate.fit import (
    Fitted,
    Job,
    Packed,
    PlanSearch,
    Search,
    StoredNumbers,
    best_of,
    better_of,
    reconstruct,
    tune,
)
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.allocate.problem import forms_in_float, lower, pack
from ptqc.passes.allocate.simplest import Fit, or_simpler
from ptqc.passes.base import Rewrite
from ptqc.passes.dump import NO_DUMP, Dump
from ptqc.passes.equalize.equalize_channels import evened
from ptqc.passes.equalize.split import with_splits, without_unused
from ptqc.passes.kv_cache.apply import with_packed_caches
from ptqc.passes.quantize.calibrate import Calibrate, CalibrateInner
from ptqc.passes.quantize.measure import Run, families_of, measured
from ptqc.passes.quantize.measure_curvature import MeasureCurvature
from ptqc.passes.quantize.measure_sensitivity import MeasureSensitivity
from ptqc.passes.quantize.phases import Decided, Setting
from ptqc.passes.quantize.prepare import Prepared, affordable, prepare
from ptqc.passes.quantize.solve_weights import CandidateCache, SolveWeights
from ptqc.utils.deadline import Deadline
from ptqc.utils.executors.base import Executor
from ptqc.utils.executors.threads import Threads
from ptqc.utils.memory import watched_memory
from ptqc.utils.progress import Progress
from ptqc.utils.scratch import scratch
from ptqc.utils.store import Store, clear_unfinished
from ptqc.utils.threads import one_blas_thread

# Of the time that is left, where there is a limit; the rest is for what comes behind.
SPLITTING_SHARE, MEASURING_SHARE, FITTING_SHARE = 0.1, 0.6, 0.5
# Of what measuring may take, the part of sensitivities; and the share of the weights below which no file is made.
SENSITIVITY_SHARE, FLOOR = 0.4, 0.1


@dataclass(frozen=True)
class CompileRequest:
    """What is asked of a compile, beside the model and its data.

    output, force: where the artifact goes, and whether it may replace another. labels, own_score: for scores. started:
    on the monotonic clock. executor: where units of work are done. clock: what measures a latency. times: of operators,
    which a latency is met with; None measures them. plan: fixed decisions, in place of solving. rewrites: of other
    packages. tokenizer: of texts, and detector: how boxes are written, for the report.
    """

    options: CompileOptions
    budgets: Budgets
    output: Path
    force: bool
    target: Chosen | None
    labels: Path | None
    own_score: OwnScore | None
    preprocessing: Preprocessing | None
    store: Store
    progress: Progress
    started: float
    executor: Executor = field(default_factory=Threads)
    clock: Clock = field(default_factory=OnnxRuntimeClock)
    times: Times | None = None
    plan: Plan | None = None
    rewrites: Sequence[Rewrite] = ()
    tokenizer: Path | None = None
    detector: Detector | None = None
    dump: Dump = NO_DUMP

    @property
    def deadline(self) -> Deadline:
        """When the compile has to be done."""
        return Deadline.after(self.options.time_limit, self.started)

    @property
    def run(self) -> Run:
        """Runs the passes that decide, within their share of the time."""
        deadline, in_library = self.deadline.share(MEASURING_SHARE), self.target is not None
        return Run(deadline, self.dump, self.executor, in_library=in_library, floor=FLOOR)

    def labelled(self, model: ir.Model, folder: Path) -> Labelled | None:
        """The labelled samples, where there are any. folder: for them."""
        if self.labels is None:
            return None
        return read_labels(model, self.labels, folder / "labelled", self.preprocessing, self.detector)

    def scoring(self, model: ir.Model, labelled: Labelled | None) -> Scoring | None:
        """How files are scored beside the float model, which is scored here."""
        return scoring_of(model, self.own_score, labelled, self.budgets.loss, self.progress)


def compile_model(model: Model, calibration: object, request: CompileRequest) -> Artifact:
    """From a model and calibration data to an artifact. Raises the errors of `ptqc.errors`."""
    options, progress = request.options, request.progress
    with one_blas_thread(), scratch() as temporary, watched_memory() as memory, request.executor:
        clear_unfinished(request.store)
        folder = Path(temporary)
        source = read_given(model, folder, cast_double=options.cast_double)
        request = replace(request, store=replace(request.store, check=source.files.check))
        losses.check(source.model, options.loss)
        place = folder / "samples"
        loss = request.budgets.loss
        samples, judging = gather_apart(source, calibration, place, options, request.preprocessing, loss, progress)
        cached = with_packed_caches(source, samples, judging, options.kv_cache, request.budgets.cache, folder)
        source, samples, judging = cached.source, cached.samples, cached.judging
        check_samples(request.target, samples, source.model)
        labelled = request.labelled(source.model, folder)
        prepared = prepare(source, samples, progress, request.dump, request.rewrites)  # rewrite
        prepared = affordable(replace(prepared, judging=judging, caches=cached.told), request.deadline)
        check_early(prepared, request.budgets, options, request.target)
        check_detector(prepared, request.detector)
        scoring = request.scoring(prepared.model, labelled)
        prepared = evened(prepared, options, request.store, request.deadline, progress)  # channels scaled and rotated
        try:
            prepared, decided, notes, entry = _measure_split(prepared, request)
        except TimeTooShort as error:
            raise _too_short(error, options.time_limit, time.monotonic() - request.started) from None
        notes = [*prepared.notes, *notes]
        job = Job(prepared, decided, options, tuple(notes), entry, request.budgets, request.started, memory=memory)
        return _deliver(job, request, scoring, folder)


def _too_short(error: TimeTooShort, limit: float, taken: float) -> TimeTooShort:
    """What a compile needs that was cut short too much. limit: seconds that it had. taken: until now."""
    needed = max(error.seconds / (MEASURING_SHARE * SENSITIVITY_SHARE), taken + 2 * error.seconds, 2 * limit)
    advice = f"give --time-limit {math.ceil(needed)}s or so, or run it where less else runs; what was solved is kept"
    return TimeTooShort(f"the time limit of {limit:g} s is too short: {error}; {advice}", needed)


def resolve_job(job: Job, request: CompileRequest, calibration: object = None) -> Artifact:
    """Another artifact from what an earlier compile measured. calibration: samples that a loss is judged on."""
    with one_blas_thread(), scratch() as temporary, watched_memory() as memory:
        folder, job = Path(temporary), replace(job, memory=memory)
        if calibration is not None:
            place, loss = folder / "judging", request.budgets.loss
            prepared = with_judges(job.prepared, calibration, place, request.preprocessing, loss)
            job = replace(job, prepared=prepared)
        scoring = request.scoring(job.model, request.labelled(job.model, folder))
        return _deliver(job, request, scoring, folder)


def _measure_split(whole: Prepared, request: CompileRequest) -> tuple[Prepared, Decided, list[Note], str]:
    """What `measure` gives of the model with wide channels split off, where what is left of them computes on codes."""
    options, store, progress, began = request.options, request.store, request.progress, time.monotonic()
    size, origin = request.budgets.size, whole.origin
    limit = None if size is None else size.limit(origin.size, origin.weights)
    prepared = with_splits(whole, options, store, progress, request.deadline.share(SPLITTING_SHARE), limit)
    found = measure(prepared, options, store, progress, request.run)
    while (fewer := without_unused(prepared, found[0])) is not prepared:
        if not request.deadline.leaves(2 * (time.monotonic() - began)):
            break
        prepared, found = fewer, measure(fewer, options, store, progress, request.run)
    return prepared, *found


def measure(
    prepared: Prepared, options: CompileOptions, store: Store, progress: Progress, run: Run | None = None
) -> tuple[Decided, list[Note], str]:
    """Everything that serves every budget: what was decided, notes, and the name of the entry in the store.

    What an earlier compile measured is taken from there.
    """
    return measured(prepared, options, store, progress, _decide, run or Run())


def _decide(setting: Setting, options: CompileOptions, cache: CandidateCache, run: Run) -> Decided:
    """The passes that decide, each with what it may take of the time that is left."""
    observed = run(Calibrate(options.observer), setting, 0.25)
    observed = run(CalibrateInner(), observed, 0.1)
    families = families_of(setting.model, options)
    solved = run(SolveWeights(options.bits, cache, options.sparsity, families, run.executor), observed, 0.4)
    measure = MeasureCurvature if options.sensitivity == "curvature" else MeasureSensitivity
    choices = partial(forms_in_float, options=options)
    measuring = measure(options.loss, options.activation_limit, choices, run.floor)
    assessed = run(measuring, solved, SENSITIVITY_SHARE)
    choose = ChooseActivations(options.activations, options.activation_limit, in_library=run.in_library)
    return run(choose, assessed, 0.3)


def _deliver(job: Job, request: CompileRequest, scoring: Scoring | None, folder: Path) -> Artifact:
    """What differs from budget to budget. folder: for files on their way."""
    progress, held_back, deadline = request.progress, job.decided.held_back, request.deadline
    job = within_latency(job, request.clock, request.times, request.plan, progress)  # choose activations for the time
    job = within_memory(job, request.plan, progress)  # and for the memory
    job, fitted, kept = _fit_budgets(job, request, scoring)
    timed = time_delivered(job, request.clock, fitted, progress)
    if (again := chosen_again(job, timed, request.times, request.plan)) is not None:
        job, fitted, kept = _fit_budgets(within_memory(again, request.plan, progress), request, scoring)
        timed = time_delivered(job, request.clock, fitted, progress)
    if job.budgets.strict:
        check_fit([*job.notes, *fitted.notes])
        if kept is not None:
            kept.check()
    request.dump.document("plan", fitted.plan.to_json())
    request.dump.model(Lower.name, fitted.lowered.model)
    probes, file = list(held_back.few(VERIFIED_SAMPLES)), fitted.exported.proto
    with progress.stage("verify"):
        activation_loss = check_activations(job.decided, fitted.plan)
        verified = _verified(job, fitted, probes)
    job = replace(job, notes=(*job.notes, *saturation_notes(fitted.exported, probes)))
    native = build_target(fitted, held_back, request.target, request.store, folder, progress)
    if timed is not None and job.budgets.strict:
        timed.check()
    memory = memory_report(job, fitted)
    if job.budgets.strict:
        memory.check()
    judged = judge(job.model, file, held_back, job.decided.kinds, scoring, progress)
    if job.budgets.strict:
        check_fit(worse_than_predicted(job, fitted, judged, [*job.notes, *fitted.notes]))
    changed = most_changed(job.model, file, held_back, job.decided.kinds, judged, request.tokenizer, request.detector)
    speed = measure_speed(job.prepared.unsplit, file, held_back, progress, deadline)
    recorded = golden.take(job.model, file, held_back)
    outcome = CompileOutcome(
        fitted,
        verified,
        activation_loss,
        native,
        timed,
        memory,
        kept,
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


def _fit_budgets(job: Job, request: CompileRequest, scoring: Scoring | None) -> tuple[Job, Fitted, KeptLoss | None]:
    """The file within the budgets, the compile with the activations that it has, and how a loss is kept."""
    plan, budget, deadline = request.plan, job.budgets.loss, request.deadline
    # Numbers of a model beyond memory are too many to be held at once while they are written.
    stored = None if is_in_files(job.model) else StoredNumbers(request.store, job.entry)
    if budget is None:
        job = with_float_layers(job, request.target, plan)  # choose what layers in float read
        decided = replace(job.decided, deadline=deadline.share(FITTING_SHARE))
        whole = Fit(decided, lambda known: fit(known, job.options, job.limit, plan, stored), request.target is not None)
        job, fitted = fit_finite(job, decided, plan, whole.fit)
        if plan is None and job.budgets.latency is None and job.budgets.memory is None:
            before, (job, taken) = fitted, or_simpler(job, fitted, whole)
            if taken is not before:  # a fault of the compiler, which may be why it loses more, would go unseen
                _verified(job, before, list(job.decided.held_back.few(VERIFIED_SAMPLES)))
            fitted = taken
        return job, fitted, None
    criterion = criterion_of(job, budget, scoring)
    fitting = partial(fit_search, options=job.options, stored=stored)
    given = Fitting(fitting, plan, request.target, deadline, FITTING_SHARE)
    job, fitted, verdict = fit_within_loss(job, criterion, given)
    return job, fitted, tell_loss(budget, verdict, job.decided.loss_unit)


def _verified(job: Job, fitted: Fitted, probes: Sequence[Feeds]) -> Verified:
    """What the checks of a file find. Raises VerificationError."""
    intent = Intent(job.model, fitted.plan, fitted.tuned)
    return verify(fitted.exported, fitted.lowered, intent, probes, job.limit)


def fit(
    decided: Decided,
    options: CompileOptions,
    limit: int | None,
    given: Plan | None = None,
    stored: StoredNumbers | None = None,
) -> Fitted:
    """The best plan whose written file has at most `limit` bytes; None: the best plan whatever its size.

    given: take these decisions instead. stored: where numbers of plans are kept. Raises Infeasible.
    """
    return fit_search(decided, PlanSearch(decided, options, limit, given), options, stored)


def fit_search(
    decided: Decided, search: Search, options: CompileOptions, stored: StoredNumbers | None = None
) -> Fitted:
    """The plan that a search takes, with its file: allocate, reconstruct, lower, pack, until it fits."""
    limit, began = search.limit, time.monotonic()
    earlier: Fitted | None = None
    while True:
        try:
            allocated = search.allocate()
        except (Infeasible, InternalError):
            if earlier is None:
                raise
            return earlier
        if earlier is not None and allocated.plan.formats == earlier.plan.formats:
            return earlier
        draws, notes = reconstruct(decided, options, allocated.plan, stored)
        files = [_file(decided, options, allocated.plan, numbers) for numbers in draws]
        best = best_of(decided, files, limit)
        if options.pipeline == "advanced" and (limit is None or best.size <= limit):
            tuned, more = tune(decided, allocated.plan, best.tuned)
            best, notes = _file(decided, options, allocated.plan, tuned), [*notes, *more]
        if earlier is None and not search.takes(allocated, best.size):
            continue
        found = Fitted(allocated, best, tuple(notes))
        if earlier is not None:
            return better_of(decided, earlier, found, limit)
        if not decided.deadline.leaves(time.monotonic() - began) or not search.goes_on(allocated, best.size):
            return found
        earlier = found


def _file(decided: Decided, options: CompileOptions, plan: Plan, numbers: TunedNumbers) -> Packed:
    """The file of a plan with these numbers."""
    lowered = lower(decided, plan, numbers)
    return Packed(numbers, lowered, pack(decided, plan, lowered, options))
