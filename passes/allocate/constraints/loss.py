"""A budget of loss is met by measuring: plan, build, measure on held-back samples, correct the limit, plan again.

The predicted loss of a plan is a sum of losses measured one by one, so the file of a plan loses more or less than that.
Samples that chose nothing then judge the files that held-back samples found good, from the largest to the smallest, and
the last one before the first that fails is delivered. The order is fixed before the judge sees any of them, so that all
that pass together err as rarely as one alone (fixed sequence of tests: Maurer, Hothorn, Lehmacher 1995).
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ptqc.calibration.images import Preprocessing
from ptqc.calibration.inputs import input_specs
from ptqc.calibration.open_batches import OpenBatches
from ptqc.calibration.recording import with_recorded
from ptqc.calibration.runnable import check_runs
from ptqc.calibration.samples import Samples, collect
from ptqc.calibration.texts import Texts
from ptqc.codegen.targets import Chosen
from ptqc.errors import CalibrationError, Infeasible, UsageError
from ptqc.evaluation.scoring import Scoring
from ptqc.execution.onnxruntime import Runner
from ptqc.formats import Format
from ptqc.frontend import ModelSource
from ptqc.ir.plan import Plan
from ptqc.ir.recorded import released
from ptqc.losses import UNITS, Kinds, OutputLoss, recognize
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.activations_in_float import fit_finite, with_float_layers
from ptqc.passes.allocate.allocation import Problem, best_choice, smallest_in_flash, smallest_within
from ptqc.passes.allocate.choose_activations import ChooseActivations, clock_of
from ptqc.passes.allocate.constraints.criteria import (
    CERTAIN,
    CONFIDENCE,
    DROP,
    FEWEST_JUDGES,
    LOSS_UNITS,
    NO_BOUND,
    SAME,
    WANTED,
    WANTED_DIFFERENCES,
    Criterion,
    EvaluatedDrop,
    LabelledDrop,
    Lost,
    MeanLoss,
    SameClass,
    Splits,
    draws_needed,
    outputs_of_classes,
)
from ptqc.passes.allocate.constraints.latency import LatencyBudget
from ptqc.passes.allocate.constraints.microcontroller import FlashBudget
from ptqc.passes.allocate.constraints.size import SizeBudget
from ptqc.passes.allocate.fit import (
    FITTING_SHARE,
    OnePlan,
    PlanSearch,
    Search,
    fit_search,
    smallest_plan,
    stored_parameters,
)
from ptqc.passes.allocate.state import (
    BudgetedModel,
    BudgetReport,
    CompileState,
    Constraint,
    Context,
    Quantity,
    QuantizedModel,
)
from ptqc.passes.effects import applied
from ptqc.passes.quantize.phases import Analysis
from ptqc.passes.quantize.prepare import SYNTHETIC, CanonicalModel, gather, with_caches
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import Progress, Stage
from ptqc.utils.store import Store

ROUNDS = 5
# Of the predicted loss, what 8-bit activations may take.
ACTIVATIONS = 0.5
# A limit within this factor of one that is too large is close enough: a few percent of the bytes.
CLOSE = 1.2
# Of the largest good limit, those of further plans: the judge has some chance to fail the plan of that one.
SAFER = (1 / 8, 1 / 3)
# Of a limit that is computed from files that all lose too much.
MARGIN = 0.9
# Samples whose outputs say what the outputs are.
SAMPLES_RECOGNIZED = 8


@dataclass(frozen=True)
class LossBudget(Constraint):
    """A limit on what the outputs lose against the float model's.

    unit: SAME (value: percent of predictions that keep their top class), DROP (points of the user's score that may be
    lost) or one of LOSS_UNITS (mean loss).
    """

    value: float
    unit: str
    kind: ClassVar[str] = "loss"
    section: ClassVar[str] = "loss_budget"
    examples: ClassVar[Mapping[str, str]] = {
        "99%same": "predictions that keep the top class of the float model",
        "1%drop": "percentage points of the score on --labels",
        "0.02nat": "mean loss of the outputs, in nat, relative, cosine or nat/detection",
    }

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "0.02nat", "99%same", "1%drop"."""
        if quantity.unit in (SAME, DROP) and quantity.number >= 100:
            raise UsageError(f"budget {quantity.text!r} must be below 100 %")
        return cls(quantity.number, quantity.unit) if quantity.unit in (SAME, DROP, *LOSS_UNITS.values()) else None

    @property
    def limit(self) -> float:
        """What may be lost at most: of predictions a share, of a score points, else a mean loss."""
        return (100 - self.value) / 100 if self.unit == SAME else self.value

    @property
    def samples_wanted(self) -> int:
        """How many samples a judge is given where there are as many."""
        if self.unit == DROP:
            return 0
        return int(np.clip(WANTED_DIFFERENCES / self.limit, *WANTED)) if self.unit == SAME else WANTED[0]

    @property
    def samples_necessary(self) -> int:
        """How few samples could at all show that the budget is kept."""
        return draws_needed(self.limit) if self.unit == SAME else FEWEST_JUDGES

    def check_request(self, target: Chosen | None, store: Store, *, is_scored: bool) -> None:  # noqa: ARG002
        """Raises UsageError where points of a score are counted and none of the ways to get one is given."""
        if self.unit == DROP and not is_scored:
            raise UsageError(f"the budget {self} counts points of a score: give --labels DATA, or evaluate in Python")

    def check(self, prepared: CanonicalModel, options: CompileOptions) -> None:
        """Raises UsageError where the outputs are not judged in what the budget counts."""
        samples, runner = prepared.tuning.some(SAMPLES_RECOGNIZED), Runner(prepared.model)
        outputs = [runner.run(feeds) for feeds in samples]
        self.check_unit(recognize(prepared.model, samples[0], outputs, options.loss))

    def check_unit(self, kinds: Kinds) -> None:
        """See `check`. kinds: how outputs are compared, by name."""
        if self.unit == DROP:
            return
        unit = OutputLoss(kinds).unit
        judged = ", ".join(f"{name} as {kind.describe()}" for name, kind in kinds.items())
        example = f"0.01{LOSS_UNITS[unit]}"
        if self.unit == SAME:
            if not outputs_of_classes(kinds):
                raise UsageError(
                    f"the budget {self} counts top classes, but no output has classes ({judged}): "
                    f"give a loss such as {example}, or say with --loss OUTPUT=logits which output has them"
                )
        elif self.unit != LOSS_UNITS[unit]:
            raise UsageError(
                f"the budget {self} does not fit: the outputs of this model are judged in {unit} ({judged}); "
                f"give a loss such as {example}"
            )

    def search(self, job: CompileState, context: Context) -> BudgetedModel:
        """See `fit_within_loss`."""
        return fit_within_loss(job, self, context)

    def __str__(self) -> str:
        return f"{self.value:g}{self.unit}"


@dataclass(frozen=True)
class Round:
    """One plan that was built. limit: of its predicted loss; room: by how much that may grow."""

    limit: float
    job: CompileState
    fitted: QuantizedModel
    held: Lost
    room: float

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return self.fitted.exported.size

    @property
    def predicted(self) -> float:
        """What activations and weights were predicted to lose together."""
        return self.job.analysis.activation_loss + self.fitted.allocation.loss


@dataclass(frozen=True)
class Verdict:
    """The rounds in the order in which they were built, the one that is delivered, and what its judge found.

    judged: by number of the round.
    """

    criterion: Criterion
    rounds: tuple[Round, ...]
    delivered: int
    judged: dict[int, Lost]

    @property
    def is_kept(self) -> bool:
        """Whether the bound on what the delivered file loses is within the budget."""
        return self.judged[self.delivered].bound <= self.criterion.limit


def criterion_of(job: CompileState, budget: LossBudget, scoring: Scoring | None) -> Criterion:
    """What a budget counts. Raises UsageError where it does not fit the model."""
    analysis, judging = job.analysis, job.prepared.judging
    budget.check_unit(analysis.kinds)
    if budget.unit == DROP:
        assert scoring is not None  # see `LossBudget.check_request`
        if scoring.labelled is None:
            return EvaluatedDrop(budget.limit, budget.unit, job.model, scoring)
        labelled = scoring.labelled.distinct  # copies would choose, and judge what they chose
        return LabelledDrop(budget.limit, budget.unit, job.model, labelled, job.prepared.samples)
    if judging is None:
        raise UsageError(
            f"the budget {budget} needs samples that were used for no choice, and the earlier compile set none aside: "
            "give more samples with --data DATA (those that were measured on are left out), or compile again "
            "with a loss budget"
        )
    splits = Splits(job.model, analysis.kinds, analysis.held_back, judging)
    of_classes = budget.unit.startswith("%")
    return (SameClass if of_classes else MeanLoss)(budget.limit, budget.unit, splits)


def fit_within_loss(job: CompileState, budget: LossBudget, context: Context) -> BudgetedModel:
    """Find the smallest file that keeps a budget of loss, or the best of a size or of a flash.

    Raises Infeasible where budgets contradict each other.
    """
    progress, deadline = job.analysis.progress, context.deadline
    criterion = criterion_of(job, budget, context.scoring)
    with progress.stage("meet the loss", ROUNDS) as stage:
        build = _Building(job, criterion, context)
        rounds = _rounds(build, criterion, deadline, stage)
        if criterion.can_show:
            rounds += _safer(build, rounds, deadline, stage)
    hopeful = [number for number, one in enumerate(rounds) if one.held.value <= criterion.limit]
    if not hopeful:
        _check_agreeing(job, budget, criterion, rounds)
        hopeful = [min(range(len(rounds)), key=lambda number: rounds[number].held.value)]
    verdict = _judge(criterion, rounds, hopeful, progress)
    chosen = rounds[verdict.delivered]
    return BudgetedModel(chosen.job, chosen.fitted, {budget.kind: loss_report(budget, verdict, job.analysis.loss_unit)})


@dataclass(frozen=True)
class _Building:
    """Builds and measures the plan of a limit on the predicted loss."""

    job: CompileState
    criterion: Criterion
    context: Context

    def __call__(self, limit: float, earlier: Sequence[Round]) -> Round | None:
        """The round; None where its plan was built before."""
        plan, deadline = self.context.plan, self.context.deadline
        job = self.job if plan is not None else _with_activations(self.job, ACTIVATIONS * limit)
        job = with_float_layers(job, self.context.target, plan)
        # Of a size, of a flash and of a given plan, only the activations follow from the limit.
        if self._has_size and any(one.job.analysis.activations == job.analysis.activations for one in earlier):
            return None
        tried = [one.fitted.plan for one in earlier]
        analysis = replace(job.analysis, deadline=deadline.share(FITTING_SHARE))
        job, fitted = fit_finite(job, analysis, plan, lambda known: self._search(known, limit, tried))
        if fitted is None:
            return None
        held = self.criterion.held(fitted.exported.proto)
        return Round(limit, job, fitted, held, self.criterion.room(held))

    @property
    def _has_size(self) -> bool:
        """Whether the best plan of a size, of a flash or as given is built, in place of the smallest."""
        return self.job.limit is not None or self.job.analysis.flash is not None or self.context.plan is not None

    def _search(self, analysis: Analysis, limit: float, tried: Sequence[Plan]) -> QuantizedModel | None:
        options = self.job.options
        if self._has_size:
            return self._fit(analysis, PlanSearch(analysis, options, self.job.limit, self.context.plan))
        smallest = smallest_plan(analysis, options, limit - analysis.activation_loss)
        return None if smallest.plan in tried else self._fit(analysis, OnePlan(smallest))

    def _fit(self, analysis: Analysis, search: Search) -> QuantizedModel:
        return fit_search(analysis, search, self.job.options, stored_parameters(self.job, self.context.store))


def _rounds(build: _Building, criterion: Criterion, deadline: Deadline, progress: Stage) -> list[Round]:
    """Plans whose limits close in on the largest one that is good enough."""
    limit = criterion.start(UNITS[build.job.analysis.loss_unit].tolerance)
    rounds, began = list[Round](), time.monotonic()
    good, bad = 0.0, math.inf
    while len(rounds) < ROUNDS:
        if rounds and not deadline.leaves((time.monotonic() - began) / len(rounds)):
            break
        result = build(limit, rounds)
        if result is None:
            break
        rounds.append(result)
        progress.advance(f"{result.size:,} bytes")
        good, bad = (max(good, limit), bad) if result.room >= 1 else (good, min(bad, limit))
        limit = _next(limit * result.room, good, bad)
        if limit <= CLOSE * good:
            break
    return rounds


def _safer(build: _Building, rounds: list[Round], deadline: Deadline, progress: Stage) -> list[Round]:
    """Plans of a part of the largest good limit, which the judge sees first: they stay where luck fails that one."""
    good = max((one.limit for one in rounds if one.room >= 1), default=min(one.limit for one in rounds))
    added = list[Round]()
    for part in SAFER[: ROUNDS - len(rounds)]:
        began = time.monotonic()
        result = build(part * good, [*rounds, *added])
        if result is not None:
            added.append(result)
            progress.advance(f"{result.size:,} bytes")
        if not deadline.leaves(time.monotonic() - began):
            break
    return added


def _next(wanted: float, good: float, bad: float) -> float:
    """The limit to try between one that is good, 0 where none is known, and one that is too large."""
    if good < wanted < bad:
        return wanted if good else MARGIN * wanted
    return math.sqrt(good * bad)


def _with_activations(job: CompileState, limit: float) -> CompileState:
    """The compile with fewer 8-bit activations where those that were chosen lose more than they may.

    Where a latency or memory chose them, or the user, they stay.
    """
    analysis = job.analysis
    is_chosen = job.timed is not None or job.budgets.choose_activations or job.options.activations != "auto"
    if is_chosen or analysis.activation_loss <= limit:
        return job
    return replace(job, analysis=applied(ChooseActivations("auto", limit, clock_of(job.options)), analysis).output)


def _judge(criterion: Criterion, rounds: Sequence[Round], hopeful: Sequence[int], progress: Progress) -> Verdict:
    """Judge from the largest file to the smallest, until one fails."""
    ordered, judged = sorted(hopeful, key=lambda number: -rounds[number].size), dict[int, Lost]()
    delivered = ordered[0]
    with progress.stage("judge the loss", len(ordered)) as stage:
        for number in ordered:
            judged[number] = criterion.judged(rounds[number].fitted.exported.proto)
            stage.advance()
            if not judged[number].bound <= criterion.limit:
                break
            delivered = number
    return Verdict(criterion, tuple(rounds), delivered, judged)


def _check_agreeing(job: CompileState, budget: LossBudget, criterion: Criterion, rounds: Sequence[Round]) -> None:
    """Raises Infeasible where the file loses too much because of its size or its latency, with what each needs."""
    best = min(rounds, key=lambda one: one.held.value)
    loses = f"loses about {criterion.shown(best.held.value)} on held-back samples"
    analysis, problem = best.job.analysis, best.fitted.problem
    room = best.predicted * best.room - analysis.activation_loss
    if job.timed is not None and room <= 0:
        latency = job.budgets.get(LatencyBudget)
        raise Infeasible(
            f"the budgets {latency} and {budget} contradict each other: with the 8-bit activations that the "
            f"time takes, the best file {loses}; give more time, or allow a larger loss",
            best.size,
        )
    if job.limit is not None:
        least = sum(c.loss for c in problem.chosen(best_choice(problem)))
        needed = smallest_within(problem, room).bytes if room > least else None
        size, unit = str(job.budgets.get(SizeBudget)), "bytes"
        within, best_size = f"the best file of at most {job.limit:,} bytes", best.size
    elif (flash := job.budgets.get(FlashBudget)) is not None and (costs := problem.flash) is not None:
        beside = flash.bytes - costs.limit  # what every plan takes
        choice = _least_flash(problem, room)
        needed = None if choice is None else beside + costs.of(choice)
        size, unit, within = str(flash), "bytes of flash", "the best network that fits"
        best_size = beside + costs.of(best.fitted.plan.formats)
    else:
        return
    message = (
        f"one that loses so little takes about {needed:,} {unit}" if needed else "none is predicted to lose so little"
    )
    raise Infeasible(
        f"the budgets {size} and {budget} contradict each other: {within} {loses}; {message}", needed or best_size
    )


def _least_flash(problem: Problem, loss: float) -> dict[str, Format] | None:
    """The plan of least flash that is predicted to lose at most `loss`; None where none loses so little."""
    anything = replace(problem, flash=None)
    if loss <= sum(c.loss for c in problem.chosen(best_choice(anything))):
        return None
    return smallest_in_flash(problem, loss)


# What a compile with a budget of loss tells: what was asked, predicted and measured, and what the judge found.

STEP = "loss"


def loss_report(budget: LossBudget, verdict: Verdict, loss_unit: str) -> BudgetReport:
    """What was asked of a file, and what it was found to lose. loss_unit: of what was predicted."""
    delivered, judged = verdict.rounds[verdict.delivered], verdict.judged[verdict.delivered]
    needed = None if verdict.is_kept else verdict.criterion.needed(judged)
    document = {
        "budget": str(budget),
        "unit": budget.unit,
        "limit": budget.limit,
        "predicted": delivered.predicted,
        "predicted_unit": loss_unit,
        "measured": _to_json(delivered.held),
        "judged": _to_json(judged),
        "confidence": CONFIDENCE,
        "kept": verdict.is_kept,
        "samples_needed": needed,
        "delivered": verdict.delivered,
        "rounds": [
            {
                "limit": one.limit,
                "predicted": one.predicted,
                "bytes": one.size,
                "measured": _to_json(one.held),
                "judged": _to_json(verdict.judged[number]) if number in verdict.judged else None,
            }
            for number, one in enumerate(verdict.rounds)
        ],
    }
    missed = () if verdict.is_kept else (_missed(budget, verdict, judged, needed),)
    certainty = verdict.criterion.certainty
    unlike = () if certainty is None or certainty < CERTAIN else (_too_certain(certainty),)
    same = verdict.criterion.measured_on
    seen = (_measured_on(same, judged.samples),) if same else ()
    return BudgetReport(document, (*missed, *unlike, *seen))


def _to_json(lost: Lost) -> dict[str, Any]:
    bound = lost.bound if math.isfinite(lost.bound) and lost.method != NO_BOUND else None  # infinite of one sample
    return {"lost": lost.value, "bound": bound, "samples": lost.samples, "method": lost.method}


def _missed(budget: LossBudget, verdict: Verdict, judged: Lost, needed: int | None) -> Note:
    shown = verdict.criterion.shown
    on = f"on {judged.samples:,} judging samples" if judged.samples else "by the score"
    text = f"the file {'gains' if judged.value < 0 else 'loses'} {shown(abs(judged.value))} {on}"
    if judged.value > budget.limit:
        return Note(STEP, "", f"{text}, over the budget of {budget}: allow a larger loss", Level.WARNING)
    who = verdict.criterion.who_judges
    if not math.isfinite(judged.bound):
        fewest = f"at least {FEWEST_JUDGES} have to judge, and {who}"
        return Note(STEP, "", f"{text}, which are too few for a bound: give more samples; {fewest}", Level.WARNING)
    more = "give more samples"
    if needed is not None:
        more = f"about {max(needed - judged.samples, 1):,} more judging samples would show that it is kept; {who}"
    message = f"{text}, but it may lose up to {shown(judged.bound)}, over the budget of {budget}: {more}"
    return Note(STEP, "", message, Level.WARNING)


def _too_certain(certainty: float) -> Note:
    message = (
        f"the float model gives its top class a mean probability of {certainty:.3f} on the judging samples, as models "
        "do on samples that they were trained on; if these are, the file may lose many times as much on new ones: "
        "give samples that training did not use"
    )
    return Note(STEP, "", message, Level.WARNING)


def _measured_on(same: int, judges: int) -> Note:
    message = (
        f"{same} of {judges} labelled samples that judge are calibration samples, to which weights were fitted: on "
        "others, the file may lose more; give labels of samples that are not in the calibration data"
    )
    return Note(STEP, "", message, Level.WARNING)


# Samples that choose nothing: a budget of loss is judged on them.

# One in JUDGING judges, where there are no more samples than are measured on.
JUDGING = 4


def gather_apart(
    source: ModelSource,
    calibration: object,
    folder: Path,
    options: CompileOptions,
    preprocessing: Preprocessing | None,
    budget: LossBudget | None,
    progress: Progress,
) -> tuple[Samples, Samples | None]:
    """The samples that are measured on, and with a budget of loss others that judge. Raises CalibrationError."""
    wanted = _wanted(budget)
    limit = options.samples + wanted
    samples = gather(source, calibration, folder, limit, preprocessing, progress, options.seed)
    if budget is None or not wanted:
        return samples, None
    measured, judging = _set_aside(samples.distinct, options.samples, budget.samples_necessary)
    check_runs(source.model, judging)
    text = f"{len(judging)} of the samples choose nothing: they judge the budget {budget}"
    notes = [*samples.notes, Note("calibrate", "", text)]
    if isinstance(calibration, str) and calibration == SYNTHETIC:
        message = f"the budget {budget} is judged on synthetic samples, and says nothing about real ones"
        notes.append(Note("calibrate", "", message, Level.WARNING))
    return replace(measured, notes=tuple(notes)), judging


def with_judges(
    prepared: CanonicalModel,
    calibration: object,
    folder: Path,
    preprocessing: Preprocessing | None,
    budget: LossBudget | None,
) -> CanonicalModel:
    """What an earlier compile prepared, with other samples that judge. Raises CalibrationError."""
    limit = _wanted(budget) + len(prepared.samples)
    batches = OpenBatches(prepared.model)
    result = collect(calibration, input_specs(prepared.model), folder, limit, preprocessing, rows=batches)
    if isinstance(calibration, Texts):
        result = with_caches(released(prepared.model), result, folder)
    result = with_recorded(prepared.model, result, folder / "recorded")
    check_runs(prepared.model, result)
    return replace(prepared, judging=_fresh(result.distinct, prepared.samples))


def _wanted(budget: LossBudget | None) -> int:
    """How many samples judge where there are as many."""
    return 0 if budget is None else budget.samples_wanted


def _set_aside(samples: Samples, most: int, necessary: int) -> tuple[Samples, Samples]:
    """The samples that are measured on, and those that only judge: what is over `most`, or a quarter of all.

    necessary: how few judges could show anything; they get as many where that leaves half of all for measuring.
    Judges are spread evenly. samples: without copies. Raises CalibrationError where there are too few.
    """
    count = len(samples)
    judges = max(count - most, count // JUDGING, 2)
    if judges < necessary <= count // 2:
        judges = necessary
    if count - judges < 2:
        raise CalibrationError(
            f"{count} different calibration samples were given; a loss budget needs at least 4, since two of them only "
            "judge the result, and preferably some hundreds"
        )
    aside = {(2 * i + 1) * count // (2 * judges) for i in range(judges)}
    measured = samples.select([i for i in range(count) if i not in aside])
    return measured, samples.select(sorted(aside))


def _fresh(samples: Samples, measured: Samples) -> Samples:
    """The samples that are not measured on. Raises CalibrationError where fewer than two are."""
    fresh = samples.select([place for place, is_measured in enumerate(samples.among(measured)) if not is_measured])
    if len(fresh) < 2:
        raise CalibrationError(
            f"only {len(fresh)} of {len(samples)} samples differ from those that were measured on and can judge a loss "
            "budget; give at least 2, and preferably some hundreds"
        )
    return fresh
