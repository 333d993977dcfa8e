"""A budget of time: operators are timed, activations chosen for it, and the delivered file is timed again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ptqc.budget import Latency
from ptqc.codegen.targets import Chosen
from ptqc.errors import Infeasible, UsageError
from ptqc.ir.plan import Plan
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.cost_model import Network, Timed, Times
from ptqc.passes.allocate.fit import Fitted
from ptqc.passes.allocate.job import Job
from ptqc.passes.allocate.joint import Weighed
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.latency import times as measuring
from ptqc.passes.allocate.latency.clock import Clock
from ptqc.passes.allocate.latency.latency_report import LatencyReport, latency_report
from ptqc.passes.allocate.latency.library_clock import LibraryClock
from ptqc.passes.allocate.meet_latency import MeetLatency
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.progress import Progress
from ptqc.utils.store.entries import Store

# How often the times are corrected by what a file of the chosen activations really takes.
CORRECTIONS = 2


def recorded_times(manifest: Mapping[str, Any]) -> Times | None:
    """The times of operators that an artifact was compiled with, if a latency was asked for."""
    latency = manifest.get("latency")
    return None if latency is None else Times.from_json(latency["times"])


def fitting_times(manifest: Mapping[str, Any], budget: Latency | None, options: CompileOptions) -> Times | None:
    """The same where they were measured of what this budget is of; what was predicted is predicted again."""
    found = recorded_times(manifest)
    if found is None or budget is None or not found.is_measured or found.target != budget.target:
        return None
    return found if found.in_blocks == _times_blocks(budget, options) else None


def _times_blocks(budget: Latency, options: CompileOptions) -> bool:
    """Whether a budget is of a file whose products in float may be of ONNX Runtime's own operators."""
    return options.in_blocks and not budget.target


def clock_of(budget: Latency | None, chosen: Chosen | None, store: Store) -> Clock:
    """What tells a latency: in ONNX Runtime, or in the library of the target that is built.

    Raises UsageError where the budget names a target that is not built for certain, TargetError where its library
    cannot be timed here.
    """
    if budget is None or not budget.target:
        return measuring.OnnxRuntimeClock()
    name = budget.target
    if chosen is None or chosen.name != name:
        raise UsageError(
            f"the budget {budget} is of the library that the target {name} builds, which is not asked for: give "
            f"target {name} too, or the latency without @{name}, for ONNX Runtime"
        )
    if chosen.may_be_missing:
        raise UsageError(
            f"the budget {budget} needs the library of the target {name}, which --allow-missing-target allows to be "
            f"missing: leave that out, or give the latency without @{name}, for ONNX Runtime"
        )
    return LibraryClock.of(chosen, store.folder)


def within_latency(job: Job, clock: Clock, given: Times | None, plan: Plan | None, progress: Progress) -> Job:
    """The compile with activations whose predicted latency is within the budget, where there is one.

    clock: what measures it. given: times of operators, which are then taken as they are. plan: fixed decisions, which
    are only looked at. Raises Infeasible, or UsageError where a fixed plan or given times do not fit.
    """
    budget = job.budgets.latency
    if budget is None:
        return job
    network, times = measuring.network_of(job.decided), given
    if times is None:
        times = clock.measure(job.decided, job.options, progress)
    else:
        _check_of_this(times, network)
        _check_where(times, budget, job.options)
    timed = Timed(budget, network, times)
    if plan is not None:
        _check(timed, plan)
        return replace(job, timed=timed)
    weighed = weighed_of(job)
    if given is not None:
        decided, notes = _choose(job, timed, weighed)
    else:
        with progress.stage("choose for the latency"):
            decided, timed, notes = _choose_and_correct(job, clock, timed, weighed)
    return replace(job, decided=decided, timed=timed, notes=(*job.notes, *notes))


def time_delivered(job: Job, clock: Clock, fitted: Fitted, progress: Progress) -> LatencyReport | None:
    """Time what is delivered where a latency was asked for."""
    if job.timed is None:
        return None
    what = "library" if job.timed.budget.target else "file"
    with progress.stage(f"{'time' if job.timed.times.is_measured else 'predict the time of'} the {what}"):
        found = clock.profiles(job.decided, job.options, fitted)
    return latency_report(job.timed, fitted.plan, *found)


def chosen_again(job: Job, report: LatencyReport | None, given: Times | None, plan: Plan | None) -> Job | None:
    """The compile with activations for longer times, where a file took longer than its budget and others may keep it.

    report: of that file. given, plan: see `within_latency`; with them nothing is chosen again.
    """
    timed = job.timed
    if timed is None or report is None or not report.notes or given is not None or plan is not None:
        return None
    predicted, measured = report.document["predicted_ms"], report.document["measured_ms"]
    if measured is None or measured <= predicted:
        return None
    longer = replace(timed, times=timed.times.scaled(measured / predicted))
    try:
        decided, notes = _choose(job, longer, weighed_of(job))
    except Infeasible:
        return None
    if decided.activations.keys() == job.decided.activations.keys():
        return None
    told = f"a file predicted to take {predicted:.3g} ms took {measured:.3g} ms: activations were chosen again"
    return replace(job, decided=decided, timed=longer, notes=(*job.notes, *notes, Note("latency", "", told)))


def _check_of_this(times: Times, network: Network) -> None:
    known = {operator.node for operator in network.operators}
    if unknown := sorted((times.floats.keys() | times.integers.keys()) - known):
        raise UsageError(f"the times given are of another model: it has no operator that makes {unknown[0]!r}")


def _check_where(times: Times, budget: Latency, options: CompileOptions) -> None:
    if times.target != budget.target:
        where = f"--budget {budget.nanoseconds / 1e6:g}ms{f'@{times.target}' if times.target else ''}"
        raise UsageError(
            f"the times given are of {times.runtime}, and the budget {budget} is of another: ask for {where}, or "
            "measure without --times"
        )
    if times.in_blocks != _times_blocks(budget, options):
        asked, given = ("onnxruntime", "standard") if options.in_blocks else ("standard", "onnxruntime")
        raise UsageError(
            f"the times given are of products in float by the {given} operators, and operators is {asked!r}: ask for "
            "the same, or measure without --times"
        )


def _check(timed: Timed, plan: Plan) -> None:
    predicted = timed.network.predict(timed.times, plan.params)
    if predicted > timed.budget.nanoseconds:
        raise UsageError(
            f"the given plan is predicted to take {predicted / 1e6:.3g} ms, over the budget of {timed.budget}"
        )


def _choose(job: Job, timed: Timed, weighed: Weighed) -> tuple[Decided, list[Note]]:
    """The activations of least loss within the predicted time, with formats of weights that keep the size."""
    options = job.options
    step = MeetLatency(timed.network, timed.times, timed.budget, options.activations, options.activation_limit, weighed)
    return within_size(job, step)


def _choose_and_correct(job: Job, clock: Clock, measured: Timed, weighed: Weighed) -> tuple[Decided, Timed, list[Note]]:
    """Choose; where a file of the choice takes longer than the budget, correct all times by its ratio and choose again.

    Raises Infeasible where even the measured times allow no choice; corrected ones only end the search.
    """
    timed = measured
    decided, notes = _choose(job, timed, weighed)
    for _ in range(CORRECTIONS):
        predicted, actual = _trial(job, clock, decided, measured)
        if actual <= timed.budget.nanoseconds:
            break
        corrected = replace(timed, times=measured.times.scaled(actual / predicted))
        try:
            decided, notes = _choose(job, corrected, weighed)
        except Infeasible:
            break
        timed = corrected
    return decided, timed, notes


def _trial(job: Job, clock: Clock, decided: Decided, timed: Timed) -> tuple[float, float]:
    """Predicted and actual nanoseconds of a file with the activations that were chosen.

    The actual time is relative to that of nothing on codes at the same moment, as the machine may have slowed down.
    """
    plan = measuring.any_plan(decided, job.options, decided.activations)
    real, found = clock.latencies(decided, job.options, plan)
    network, times = timed.network, timed.times
    return network.predict(times, plan.params), found / real * network.predict(times, ())
