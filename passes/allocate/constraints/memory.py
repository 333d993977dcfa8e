"""A budget of memory: activations and formats chosen for it, and files of them measured, until one keeps it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from ptqc.budget import MemoryBudget
from ptqc.codegen.onnxruntime.size import loaded_bytes
from ptqc.errors import Infeasible, Missed, UsageError
from ptqc.evaluation.judge import one_sample
from ptqc.execution.memory import run_bytes
from ptqc.execution.onnxruntime import Feeds, Runner, is_lean, tensors_of
from ptqc.execution.shapes import observed_shapes
from ptqc.execution.speed import Subject
from ptqc.ir.external import is_in_files
from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note
from ptqc.passes.allocate.allocation import smallest_choice
from ptqc.passes.allocate.constraints.clocks import everything_of
from ptqc.passes.allocate.fit import Fitted, Job, best_within
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.meet_memory import PRECISION, MeetMemory
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.allocate.problem import packed, problem_of, table_numbers
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.progress import Progress

# What the delivered file needs of memory: its weights as they are loaded, and at most in a run of one sample.

STEP = "memory"
RUNTIME = f"ONNX Runtime {ort.__version__}"


@dataclass(frozen=True)
class MemoryReport:
    """document: for the manifest."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...] = ()

    def check(self) -> None:
        """Raises Missed where the file needs more than its budget."""
        if self.notes:
            raise Missed(f"{self.notes[0].message}; without strict the file is delivered all the same")


def memory_model(decided: Decided) -> MemoryModel:
    """What the memory of a choice of activations is predicted from, with the shapes of one sample."""
    model, feeds = decided.model, sample_of(decided)
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    names = [str(value.name) for value in values if value.is_graph_output() or value.consumers()]
    shapes = _shapes(model, feeds, [name for name in names if name not in feeds])
    return MemoryModel.of(model, everything_of(decided), {name: shapes[name] for name in names if name in shapes})


def _shapes(model: ir.Model, feeds: Feeds, inner: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Of inputs and inner values; of a model beyond memory not all values are there at a time."""
    if is_in_files(model):
        return observed_shapes(model, feeds)
    found = {**feeds, **tensors_of(Runner(model, inner).run(feeds, inner))}
    return {name: array.shape for name, array in found.items()}


def sample_of(decided: Decided) -> Feeds:
    """The feeds of one sample, or of as many as the model takes at once."""
    return one_sample(decided.model, decided.held_back)[0]


def memory_report(job: Job, fitted: Fitted) -> MemoryReport:
    """The bytes of a delivered file, with what was predicted of a run."""
    decided, predicted = job.decided, memory_model(job.decided)
    proto, quantized = fitted.exported.proto, fitted.plan.params
    if is_lean(proto, decided.model):  # it is not loaded as a whole, all of its weights in float
        formats = sum(candidate.memory for candidate in fitted.problem.chosen(fitted.plan.formats))
        weights, measured = predicted.loaded(quantized) + formats, None
    else:
        weights, measured = loaded_bytes(proto), run_bytes(Subject(proto, sample_of(decided)))
    expected = predicted.peak(quantized) - predicted.loaded(quantized)
    needed, budget = weights + (expected if measured is None else measured), job.budgets.memory
    document = {
        "runtime": RUNTIME,
        "weights_bytes": weights,
        "run_bytes": measured,
        "predicted_run_bytes": expected,
        "needed_bytes": needed,
        "budget": None if budget is None else str(budget),
        "limit_bytes": None if budget is None else budget.bytes,
    }
    return MemoryReport(document, () if budget is None else _over(needed, budget))


def _over(needed: int, budget: MemoryBudget) -> tuple[Note, ...]:
    if needed <= budget.bytes:
        return ()
    message = f"the file needs {needed:,} bytes when it is loaded and run, over the budget of {budget}: give more"
    return (Note(STEP, "", message, Level.WARNING),)


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
