"""A budget of memory: activations and formats chosen for it, and files of them measured, until one keeps it."""

import math
from dataclasses import replace

from ptqc.budget import MemoryBudget
from ptqc.codegen.onnxruntime.memory import loaded_bytes
from ptqc.errors import Infeasible, UsageError
from ptqc.execution.memory import run_bytes
from ptqc.execution.profile import Subject
from ptqc.ir.plan import Plan
from ptqc.passes.allocate.allocation import smallest_choice
from ptqc.passes.allocate.fit import best_within
from ptqc.passes.allocate.job import Job
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.meet_memory import PRECISION, MeetMemory
from ptqc.passes.allocate.memory.memory_report import memory_model, sample_of
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.allocate.problem import packed, problem_of, table_numbers
from ptqc.utils.progress import Progress

# How often a choice is corrected by what a file of it needs more than was predicted.
CORRECTIONS = 3


def within_memory(job: Job, plan: Plan | None, progress: Progress) -> Job:
    """The compile with activations, and a limit for weights, whose file keeps the budget of memory if there is one.

    plan: fixed decisions, which are only looked at. Raises Infeasible, or UsageError where a fixed plan does not fit.
    """
    budget = job.budgets.memory
    if budget is None:
        return job
    with progress.stage("meet the memory"):
        model = memory_model(job.decided)
        if plan is not None:
            if (needed := _measure(job, model, plan)) > budget.bytes:
                raise UsageError(f"the file of the given plan needs {needed:,} bytes, over the budget of {budget}")
            return job
        return _chosen(job, model)


def _chosen(job: Job, model: MemoryModel) -> Job:
    """The compile with a choice whose file keeps the budget; the one that it has where that does."""
    budget, options = job.budgets.memory, job.options
    assert budget is not None
    found, (least, more) = job, _needed(job, model)
    if least <= budget.bytes:
        return job
    step = MeetMemory(model, budget, more, options.activations, options.activation_limit, weighed_of(job), job.timed)
    for _ in range(CORRECTIONS):
        try:
            found = _with(job, step)
        except Infeasible as refusal:
            raise _measured(job, step, refusal) from None
        needed, more = _needed(found, model)
        if needed <= budget.bytes:
            return found
        least, step = min(least, needed), replace(step, more=more)
    raise Infeasible(
        f"the budget of {budget} cannot be met: of the files that were predicted to keep it, the least needs "
        f"{least:,} bytes",
        least,
    )


def _with(job: Job, step: MeetMemory) -> Job:
    decided, notes = within_size(job, step)
    return replace(job, decided=decided, notes=(*job.notes, *notes))


def _measured(job: Job, step: MeetMemory, refusal: Infeasible) -> Infeasible:
    """A refusal that tells what a file of the least choice really needs."""
    wider = replace(step, budget=MemoryBudget(math.ceil(refusal.smallest * (1 + PRECISION))))
    try:
        needed, _ = _needed(_with(job, wider), step.memory)
    except Infeasible:
        return refusal
    return Infeasible(f"{refusal}; a file of about that was built, and needs {needed:,}", needed)


def _needed(job: Job, model: MemoryModel) -> tuple[int, int]:
    """Bytes of a file of the compile's activations and of the best formats, and how many were not predicted."""
    decided = job.decided
    problem = problem_of(decided, decided.undecided, job.options)
    try:
        formats = best_within(problem, job.limit).choice
    except Infeasible:  # which is told when the file is fitted to its size, if this choice stays
        formats = smallest_choice(problem)
    found = _measure(job, model, decided.undecided.with_formats(formats))
    predicted = model.peak(decided.tensors_of(decided.activations)) + sum(c.memory for c in problem.chosen(formats))
    return found, found - predicted


def _measure(job: Job, model: MemoryModel, plan: Plan) -> int:
    """Bytes of a file of a plan."""
    decided = job.decided
    _, exported = packed(decided, plan, table_numbers(decided, plan.formats), job.options)
    quantized = plan.params
    measured = run_bytes(Subject(exported.proto, sample_of(decided)))
    predicted = model.peak(quantized) - model.loaded(quantized)
    return loaded_bytes(exported.proto) + (predicted if measured is None else measured)
