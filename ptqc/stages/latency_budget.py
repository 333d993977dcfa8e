"""A budget of time: operators are timed, activations chosen for it, and the delivered file is timed again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptqc.artifact import folder as artifact
from ptqc.errors import Infeasible, UsageError
from ptqc.execute.profile import Subject, latencies, profile
from ptqc.notes import Note
from ptqc.passes.decide.meet_latency import MeetLatency
from ptqc.passes.decide.phases import Decided
from ptqc.plan import Plan
from ptqc.solvers.cost_model import Network, Timed, Times
from ptqc.solvers.joint import Weighed
from ptqc.stages import times as measuring
from ptqc.stages.fit import Fitted
from ptqc.stages.job import Job
from ptqc.stages.joint_budgets import weighed_of, within_size
from ptqc.stages.latency_report import LatencyReport, latency_report
from ptqc.stages.problem import packed, table_numbers
from ptqc.work.progress import Progress

# How often the times are corrected by what a file of the chosen activations really takes.
CORRECTIONS = 2
SECONDS = 3.0


def recorded_times(manifest: Mapping[str, Any]) -> Times | None:
    """The times of operators that an artifact was compiled with, if a latency was asked for."""
    latency = manifest.get("latency")
    return None if latency is None else Times.from_json(latency["times"])


def times_of(folder: str | Path) -> Times:
    """The times that the artifact in a folder recorded. Raises UsageError where it has none."""
    found = recorded_times(artifact.load(folder).manifest)
    if found is None:
        raise UsageError(f"{folder} was compiled with no latency budget, so it records no times of operators")
    return found


def within_latency(job: Job, given: Times | None, plan: Plan | None, progress: Progress) -> Job:
    """The compile with activations whose predicted latency is within the budget, where there is one.

    given: times of operators, which are then taken as they are. plan: fixed decisions, which are only looked at.
    Raises Infeasible, or UsageError where a fixed plan or given times do not fit.
    """
    budget = job.budgets.latency
    if budget is None:
        return job
    network, times = measuring.network_of(job.decided), given
    if times is None:
        times = measuring.measure_times(job.decided, job.options, progress)
    else:
        _check_of_this(times, network)
    timed = Timed(budget, network, times)
    if plan is not None:
        _check(timed, plan)
        return replace(job, timed=timed)
    weighed = weighed_of(job)
    if given is not None:
        decided, notes = _choose(job, timed, weighed)
    else:
        with progress.stage("choose for the latency"):
            decided, timed, notes = _choose_and_correct(job, timed, weighed)
    return replace(job, decided=decided, timed=timed, notes=(*job.notes, *notes))


def time_delivered(job: Job, fitted: Fitted, progress: Progress) -> LatencyReport | None:
    """Time the delivered file where a latency was asked for."""
    if job.timed is None:
        return None
    feeds, model = job.decided.held_back[0], job.model
    with progress.stage("time the file"):
        real = measuring.float_subject(model, fitted.plan, feeds)
        packed_ = measuring.quantized_subject(fitted.lowered, fitted.exported, fitted.plan, feeds)
        return latency_report(job.timed, fitted.plan, *profile([real, packed_], SECONDS))


def _check_of_this(times: Times, network: Network) -> None:
    known = {operator.node for operator in network.operators}
    if unknown := sorted((times.floats.keys() | times.integers.keys()) - known):
        raise UsageError(f"the times given are of another model: it has no operator that makes {unknown[0]!r}")


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


def _choose_and_correct(job: Job, measured: Timed, weighed: Weighed) -> tuple[Decided, Timed, list[Note]]:
    """Choose; where a file of the choice takes longer than the budget, correct all times by its ratio and choose again.

    Raises Infeasible where even the measured times allow no choice; corrected ones only end the search.
    """
    timed = measured
    decided, notes = _choose(job, timed, weighed)
    for _ in range(CORRECTIONS):
        predicted, actual = _trial(job, decided, measured)
        if actual <= timed.budget.nanoseconds:
            break
        corrected = replace(timed, times=measured.times.scaled(actual / predicted))
        try:
            decided, notes = _choose(job, corrected, weighed)
        except Infeasible:
            break
        timed = corrected
    return decided, timed, notes


def _trial(job: Job, decided: Decided, timed: Timed) -> tuple[float, float]:
    """Predicted and actual nanoseconds of a file with the activations that were chosen.

    The actual time is relative to the float network's at the same moment, as the machine may have slowed down.
    """
    model, feeds = job.model, decided.held_back[0]
    plan = measuring.any_plan(decided, job.options, decided.activations)
    _, exported = packed(decided, plan, table_numbers(decided, plan.formats))
    subjects = [Subject(model, feeds), Subject(exported.proto, feeds)]
    real, found = latencies(subjects, SECONDS)
    network, times = timed.network, timed.times
    return network.predict(times, plan.params), found / real * network.predict(times, ())
