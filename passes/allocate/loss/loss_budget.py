"""A budget of loss is met by measuring: plan, build, measure on held-back samples, correct the limit, plan again.

The predicted loss of a plan is a sum of losses measured one by one, so the file of a plan loses more or less than that.
Samples that chose nothing then judge the files that held-back samples found good, from the largest to the smallest, and
the last one before the first that fails is delivered. The order is fixed before the judge sees any of them, so that all
that pass together err as rarely as one alone (fixed sequence of tests: Maurer, Hothorn, Lehmacher 1995).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ptqc.budget import DROP, LossBudget
from ptqc.codegen.targets import Chosen
from ptqc.errors import Infeasible, UsageError
from ptqc.evaluation.scoring import Scoring
from ptqc.ir.plan import Plan
from ptqc.losses import UNITS
from ptqc.passes.allocate.allocation import best_choice, smallest_within
from ptqc.passes.allocate.choose_activations import ChooseActivations
from ptqc.passes.allocate.fit import Fitted, OnePlan, PlanSearch, Search, smallest_plan
from ptqc.passes.allocate.float_activations import fit_finite
from ptqc.passes.allocate.float_layers import with_float_layers
from ptqc.passes.allocate.job import Job
from ptqc.passes.allocate.loss.criteria import (
    Criterion,
    EvaluatedDrop,
    LabelledDrop,
    Lost,
    MeanLoss,
    SameClass,
    Splits,
    check_unit,
)
from ptqc.passes.effects import applied
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.deadline import Deadline
from ptqc.utils.progress import Progress, Stage

ROUNDS = 5
# Of the predicted loss, what 8-bit activations may take.
ACTIVATIONS = 0.5
# A limit within this factor of one that is too large is close enough: a few percent of the bytes.
CLOSE = 1.2
# Of the largest good limit, those of further plans: the judge has some chance to fail the plan of that one.
SAFER = (1 / 8, 1 / 3)
# Of a limit that is computed from files that all lose too much.
MARGIN = 0.9


@dataclass(frozen=True)
class Fitting:
    """What a compile is given beside the job.

    fit: makes the file of the plan that a search takes. plan: fixed decisions. target: which may change what layers in
    float read. share: of the deadline for one plan.
    """

    fit: Callable[[Decided, Search], Fitted]
    plan: Plan | None
    target: Chosen | None
    deadline: Deadline
    share: float


@dataclass(frozen=True)
class Round:
    """One plan that was built. limit: of its predicted loss; room: by how much that may grow."""

    limit: float
    job: Job
    fitted: Fitted
    held: Lost
    room: float

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return self.fitted.exported.size

    @property
    def predicted(self) -> float:
        """What activations and weights were predicted to lose together."""
        return self.job.decided.activation_loss + self.fitted.allocation.loss


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


def criterion_of(job: Job, budget: LossBudget, scoring: Scoring | None) -> Criterion:
    """What a budget counts. Raises UsageError where it does not fit the model."""
    decided, judging = job.decided, job.prepared.judging
    check_unit(budget, decided.kinds)
    if budget.unit == DROP:
        assert scoring is not None  # see `ptqc.early_checks.check_score`
        if scoring.labelled is None:
            return EvaluatedDrop(budget.limit, budget.unit, job.model, scoring)
        return LabelledDrop(budget.limit, budget.unit, job.model, scoring.labelled)
    if judging is None:
        raise UsageError(
            f"the budget {budget} needs samples that were used for no choice, and the earlier compile set none aside: "
            "give more samples with --calibration DATA (those that were measured on are left out), or compile again "
            "with a loss budget"
        )
    splits = Splits(job.model, decided.kinds, decided.held_back, judging)
    of_classes = budget.unit.startswith("%")
    return (SameClass if of_classes else MeanLoss)(budget.limit, budget.unit, splits)


def fit_within_loss(job: Job, criterion: Criterion, given: Fitting) -> tuple[Job, Fitted, Verdict]:
    """The smallest file found that keeps a budget of loss, or the best of a size, with the compile that made it.

    Raises Infeasible where budgets contradict each other.
    """
    progress = job.decided.progress
    with progress.stage("meet the loss", ROUNDS) as stage:
        build = _Building(job, criterion, given)
        rounds = _rounds(build, criterion, given.deadline, stage)
        if criterion.can_show:
            rounds += _safer(build, rounds, given.deadline, stage)
    hopeful = [number for number, one in enumerate(rounds) if one.held.value <= criterion.limit]
    if not hopeful:
        _check_agreeing(job, criterion, rounds)
        hopeful = [min(range(len(rounds)), key=lambda number: rounds[number].held.value)]
    verdict = _judge(criterion, rounds, hopeful, progress)
    chosen = rounds[verdict.delivered]
    return chosen.job, chosen.fitted, verdict


@dataclass(frozen=True)
class _Building:
    """Builds and measures the plan of a limit on the predicted loss."""

    job: Job
    criterion: Criterion
    given: Fitting

    def __call__(self, limit: float, earlier: Sequence[Round]) -> Round | None:
        """The round; None where its plan was built before."""
        plan = self.given.plan
        job = self.job if plan is not None else _with_activations(self.job, ACTIVATIONS * limit)
        job = with_float_layers(job, self.given.target, plan)
        # Of a given size, and of a given plan, only the activations follow from the limit.
        fixed = job.limit is not None or plan is not None
        if fixed and any(one.job.decided.activations == job.decided.activations for one in earlier):
            return None
        tried = [one.fitted.plan for one in earlier]
        decided = replace(job.decided, deadline=self.given.deadline.share(self.given.share))
        job, fitted = fit_finite(job, decided, plan, lambda known: self._fit(known, limit, tried))
        if fitted is None:
            return None
        held = self.criterion.held(fitted.exported.proto)
        return Round(limit, job, fitted, held, self.criterion.room(held))

    def _fit(self, decided: Decided, limit: float, tried: Sequence[Plan]) -> Fitted | None:
        options, size = self.job.options, self.job.limit
        if size is not None or self.given.plan is not None:
            return self.given.fit(decided, PlanSearch(decided, options, size, self.given.plan))
        found = smallest_plan(decided, options, limit - decided.activation_loss)
        return None if found.plan in tried else self.given.fit(decided, OnePlan(found))


def _rounds(build: _Building, criterion: Criterion, deadline: Deadline, progress: Stage) -> list[Round]:
    """Plans whose limits close in on the largest one that is good enough."""
    limit = criterion.start(UNITS[build.job.decided.loss_unit].tolerance)
    rounds, began = list[Round](), time.monotonic()
    good, bad = 0.0, math.inf
    while len(rounds) < ROUNDS:
        if rounds and not deadline.leaves((time.monotonic() - began) / len(rounds)):
            break
        found = build(limit, rounds)
        if found is None:
            break
        rounds.append(found)
        progress.advance(f"{found.size:,} bytes")
        good, bad = (max(good, limit), bad) if found.room >= 1 else (good, min(bad, limit))
        limit = _next(limit * found.room, good, bad)
        if limit <= CLOSE * good:
            break
    return rounds


def _safer(build: _Building, rounds: list[Round], deadline: Deadline, progress: Stage) -> list[Round]:
    """Plans of a part of the largest good limit, which the judge sees first: they stay where luck fails that one."""
    good = max((one.limit for one in rounds if one.room >= 1), default=min(one.limit for one in rounds))
    added = list[Round]()
    for part in SAFER[: ROUNDS - len(rounds)]:
        began = time.monotonic()
        found = build(part * good, [*rounds, *added])
        if found is not None:
            added.append(found)
            progress.advance(f"{found.size:,} bytes")
        if not deadline.leaves(time.monotonic() - began):
            break
    return added


def _next(wanted: float, good: float, bad: float) -> float:
    """The limit to try between one that is good, 0 where none is known, and one that is too large."""
    if good < wanted < bad:
        return wanted if good else MARGIN * wanted
    return math.sqrt(good * bad)


def _with_activations(job: Job, limit: float) -> Job:
    """The compile with fewer 8-bit activations where those that were chosen lose more than they may.

    Where a latency or memory chose them, or the user, they stay.
    """
    decided = job.decided
    is_chosen = job.timed is not None or job.budgets.memory is not None or job.options.activations != "auto"
    if is_chosen or decided.activation_loss <= limit:
        return job
    return replace(job, decided=applied(ChooseActivations("auto", limit), decided).made)


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


def _check_agreeing(job: Job, criterion: Criterion, rounds: Sequence[Round]) -> None:
    """Raises Infeasible where the file loses too much because of its size or its latency, with what each needs."""
    best = min(rounds, key=lambda one: one.held.value)
    loses = f"loses about {criterion.shown(best.held.value)} on held-back samples"
    asked, decided, problem = job.budgets, best.job.decided, best.fitted.problem
    room = best.predicted * best.room - decided.activation_loss
    if job.timed is not None and room <= 0:
        raise Infeasible(
            f"the budgets {asked.latency} and {asked.loss} contradict each other: with the 8-bit activations that the "
            f"time takes, the best file {loses}; give more time, or allow a larger loss",
            best.size,
        )
    if job.limit is None:
        return
    least = sum(c.loss for c in problem.chosen(best_choice(problem)))
    needed = smallest_within(problem, room).bytes if room > least else None
    told = f"one that loses so little has about {needed:,} bytes" if needed else "none is predicted to lose so little"
    raise Infeasible(
        f"the budgets {asked.size} and {asked.loss} contradict each other: the best file of at most "
        f"{job.limit:,} bytes {loses}; {told}",
        needed or best.size,
    )
