"""From measurements and a limit to a packed file that keeps it: allocate, reconstruct, lower, pack, weigh."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptqc.codegen.onnxruntime.export import Exported
from ptqc.errors import Infeasible, InternalError, UsageError
from ptqc.lowered import Lowered
from ptqc.notes import Note, out_of_time
from ptqc.options import CompileOptions, Pipeline
from ptqc.passes.decide.phases import Decided, Planned, Tunable
from ptqc.passes.effects import applied, check_tuned
from ptqc.passes.tune.features import TuneFeatures
from ptqc.passes.tune.reconstruct import Reconstruct, reconstruct_all
from ptqc.plan import Plan
from ptqc.solutions import TunedNumbers
from ptqc.solvers.allocation import Allocation, Problem, allocate, best_choice, smallest_choice, smallest_within
from ptqc.stages.compare import HeldBackLoss
from ptqc.stages.problem import packed, problem_of, weighed

ATTEMPTS = 8
# Reconstructions of a plan of which the best on held-back samples is taken.
TRIES: Mapping[Pipeline, int] = {"light": 2, "advanced": 6}
DRAWS_AT_ONCE = 2


@dataclass(frozen=True)
class Fitted:
    """The delivered file and everything that led to it. told: bytes that the solver was told."""

    plan: Plan
    tuned: TunedNumbers
    allocation: Allocation
    problem: Problem
    lowered: Lowered
    exported: Exported
    told: int
    notes: tuple[Note, ...] = ()


def fit(decided: Decided, options: CompileOptions, limit: int | None, fixed_plan: Plan | None = None) -> Fitted:
    """The best plan whose written file has at most `limit` bytes; None: the best plan whatever its size.

    fixed_plan: take these decisions instead. Raises Infeasible.
    """
    chosen = replace(decided.roles, activations=decided.activations)
    undecided = chosen if fixed_plan is None else replace(fixed_plan, formats={})
    problem = problem_of(decided, undecided, options)
    if fixed_plan is not None:
        return _as_planned(decided, options, fixed_plan, problem, limit)
    for _ in range(ATTEMPTS):
        try:
            allocation = best_within(problem, limit)
        except Infeasible:
            most = problem.size(best_choice(problem))
            return _smallest(decided, options, undecided, problem, limit or most)
        plan = undecided.with_formats(allocation.choice)
        written = weighed(decided, options, plan)
        if limit is None or written <= limit:
            fitted = _built(decided, options, plan, allocation, problem, limit)
            written = len(fitted.exported.data)
        if limit is None or written <= limit:
            return fitted
        # What this plan has beyond what the solver was told, every plan is taken to have.
        problem = replace(problem, fixed=problem.fixed + written - allocation.bytes)
    raise InternalError(f"no plan was found whose written file keeps {limit:,} bytes after {ATTEMPTS} attempts")


def best_within(problem: Problem, limit: int | None) -> Allocation:
    """The best plan of at most `limit` bytes; no more than the best of all needs, as the rest lowers no loss.

    Raises Infeasible.
    """
    most = problem.size(best_choice(problem))
    return allocate(problem, most if limit is None else min(limit, most))


def fit_within(decided: Decided, options: CompileOptions, loss: float, tried: Sequence[Plan] = ()) -> Fitted | None:
    """The smallest plan whose weights are predicted to lose at most `loss`; the best plan where none loses so little.

    None where it is one of those that were tried before.
    """
    undecided = replace(decided.roles, activations=decided.activations)
    problem = problem_of(decided, undecided, options)
    allocation = smallest_within(problem, loss)
    plan = undecided.with_formats(allocation.choice)
    return None if plan in tried else _built(decided, options, plan, allocation, problem, None)


def _smallest(decided: Decided, options: CompileOptions, undecided: Plan, problem: Problem, limit: int) -> Fitted:
    """The smallest plan where its written file keeps the limit after all: the solver's bytes are an upper estimate.

    Raises Infeasible with the bytes that it really has.
    """
    allocation = allocate(problem, problem.size(smallest_choice(problem)))
    plan = undecided.with_formats(allocation.choice)
    tuned = applied(Reconstruct(), Planned(decided, plan)).made
    _, exported = packed(decided, plan, tuned, inline=options.inline)
    written = len(exported.data)
    problem = replace(problem, fixed=problem.fixed + written - allocation.bytes)
    if written > limit:
        allocate(problem, limit)
    return _built(decided, options, plan, replace(allocation, bytes=written, limit=limit), problem, limit)


def _as_planned(decided: Decided, options: CompileOptions, plan: Plan, problem: Problem, limit: int | None) -> Fitted:
    _check_formats(problem, plan)
    fitted = _built(decided, options, plan, _as_given(problem, plan, limit), problem, limit)
    written = len(fitted.exported.data)
    if limit is not None and written > limit:
        raise UsageError(f"the file of the given plan has {written:,} bytes, over the budget of {limit:,}")
    return fitted


def _check_formats(problem: Problem, plan: Plan) -> None:
    """Raises UsageError where a given plan takes a format that was not measured or that the weight's kernel refuses."""
    for name, candidates in problem.by_weight().items():
        forms = [candidate.form for candidate in candidates]
        if (given := plan.formats[name]) not in forms:
            known = ", ".join(map(str, forms))
            raise UsageError(
                f"the plan stores weight {name!r} as {given}; its kernel and the measurements allow {known}"
            )


def _built(
    decided: Decided,
    options: CompileOptions,
    plan: Plan,
    allocation: Allocation,
    problem: Problem,
    limit: int | None,
) -> Fitted:
    """The best of a plan's reconstructions that keep the limit; the smallest one where none does."""
    tries, notes = _tries(decided, options, plan)
    within = [built for built in tries if limit is None or len(built[-1].data) <= limit]
    smallest = min(tries, key=lambda built: len(built[-1].data))
    tuned, lowered, exported = _best(decided, within) if within else smallest
    if within and options.pipeline == "advanced":
        result = applied(TuneFeatures(), Tunable(decided, plan, tuned))
        tuned, notes = result.made, [*notes, *result.notes]
        lowered, exported = packed(decided, plan, tuned, inline=options.inline)
    return Fitted(plan, tuned, allocation, problem, lowered, exported, problem.size(plan.formats), tuple(notes))


_Built = tuple[TunedNumbers, Lowered, Exported]


def _tries(decided: Decided, options: CompileOptions, plan: Plan) -> tuple[list[_Built], list[Note]]:
    """A plan's reconstructions from several draws of the data: below 4 bits their losses differ by half and more."""
    draws, tuned, began = range(TRIES[options.pipeline]), list[TunedNumbers](), time.monotonic()
    for done, first in enumerate(draws[::DRAWS_AT_ONCE]):
        if done and not decided.deadline.leaves((time.monotonic() - began) / done):
            break
        together = DRAWS_AT_ONCE if decided.deadline.leaves(0) else 1
        tuned += reconstruct_all(Planned(decided, plan), draws[first : first + together])
    for numbers in tuned:
        check_tuned(Reconstruct.name, numbers)
    notes = [] if len(tuned) == len(draws) else [out_of_time(f"{len(tuned)} of {len(draws)} reconstructions")]
    if kept := max(numbers.kept for numbers in tuned):
        notes.append(out_of_time(f"the reconstruction of {len(plan.layers) - kept} of {len(plan.layers)} layers"))
    return [(numbers, *packed(decided, plan, numbers, inline=options.inline)) for numbers in tuned], notes


def _best(decided: Decided, found: Sequence[_Built]) -> _Built:
    """The one of least held-back loss."""
    if len(found) == 1:
        return found[0]
    loss = HeldBackLoss(decided.model, decided.held_back, decided.kinds)
    return min(found, key=lambda built: loss(built[-1].data))


def _as_given(problem: Problem, plan: Plan, limit: int | None) -> Allocation:
    loss = sum(c.loss for c in problem.chosen(plan.formats))
    total = problem.size(plan.formats)
    return Allocation(dict(plan.formats), loss, 0.0, total, limit or total, "given")
