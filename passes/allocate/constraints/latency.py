"""A budget of time: operators are timed, activations chosen for it, and the delivered file is timed again."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ptqc.budget import Latency
from ptqc.codegen.targets import Chosen
from ptqc.errors import Infeasible, Missed, UsageError
from ptqc.execution.speed import Profile
from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.constraints import clocks
from ptqc.passes.allocate.constraints.clocks import LibraryClock
from ptqc.passes.allocate.cost_model import Network, Timed, Times
from ptqc.passes.allocate.fit import Fitted, Job
from ptqc.passes.allocate.joint import Weighed
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.meet_latency import MeetLatency
from ptqc.passes.quantize.phases import Decided
from ptqc.utils.progress import Progress
from ptqc.utils.store import Store

# What a compile with a latency budget tells: predicted and measured times, whole and of each operator.
#
# Where no time is measured, as of a library for chips that are not here, what was delivered is predicted once more,
# kernel by kernel; what would be measured is null then.

MILLISECOND, MICROSECOND = 1e6, 1e3
STEP = "latency"


@dataclass(frozen=True)
class LatencyReport:
    """document: for the manifest."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...]

    def check(self) -> None:
        """Raises Missed where the file takes longer than its budget."""
        if self.notes:
            raise Missed(f"{self.notes[0].message}; without strict the file is delivered all the same")


def latency_report(timed: Timed, plan: Plan, real: Profile, found: Profile) -> LatencyReport:
    """The times of a delivered file beside its prediction. real: of the float network at the same time."""
    is_measured = timed.times.is_measured
    predicted = timed.network.predict(timed.times, plan.params) if is_measured else found.nanoseconds
    document = {
        "budget": str(timed.budget),
        "budget_ms": timed.budget.nanoseconds / MILLISECOND,
        "runtime": timed.times.runtime,
        "predicted_ms": predicted / MILLISECOND,
        "measured_ms": found.nanoseconds / MILLISECOND if is_measured else None,
        "float_ms": real.nanoseconds / MILLISECOND,
        "operators": _operators(timed, plan, found.charges),
        "conversions": _conversions(timed, plan, found.charges),
        "times": timed.times.to_json(),
    }
    return LatencyReport(document, _over_budget(timed, found))


def _operators(timed: Timed, plan: Plan, charges: Mapping[Hashable, float]) -> list[dict[str, Any]]:
    times, codes = timed.times, timed.network.on_codes(plan.params)
    predicted = timed.network.operator_times(times, plan.params) if times.is_measured else charges
    return [
        {
            "node": o.node,
            "operator": o.op_type,
            "compute": "integer" if o.node in codes else "float",
            "predicted_us": predicted.get(o.node, 0.0) / MICROSECOND,
            "measured_us": charges.get(o.node, 0.0) / MICROSECOND if times.is_measured else None,
            "float_us": times.floats.get(o.node, 0.0) / MICROSECOND,
            "integer_us": times.integers.get(o.node, 0.0) / MICROSECOND if o.tensors else None,
        }
        for o in timed.network.operators
    ]


def _conversions(timed: Timed, plan: Plan, charges: Mapping[Hashable, float]) -> dict[str, float | None]:
    operators = {o.node for o in timed.network.operators}
    found = timed.network.conversion_times(timed.times, plan.params)
    taken = sum(ns for key, ns in charges.items() if key not in operators)
    return {
        "tensors": len(found),
        "predicted_us": (sum(found.values()) if timed.times.is_measured else taken) / MICROSECOND,
        "measured_us": taken / MICROSECOND if timed.times.is_measured else None,
    }


def _over_budget(timed: Timed, found: Profile) -> tuple[Note, ...]:
    if found.nanoseconds <= timed.budget.nanoseconds:
        return ()
    what = "one run of the library" if timed.budget.target else "one run"
    took, remedy = "took", "run it again where nothing else runs, or give a smaller budget"
    if not timed.times.is_measured:
        took, remedy = "is predicted to take", "give a smaller budget"
    message = f"{what} {took} {found.nanoseconds / MILLISECOND:.3g} ms, over the budget of {timed.budget}: {remedy}"
    return (Note(STEP, "", message, Level.WARNING),)


# Where a latency counts: what measures operators and files there.


class Clock(Protocol):
    """Measures on this machine: one sample on one thread, in turns with the float network. Or predicts for another."""

    def measure(self, decided: Decided, options: CompileOptions, progress: Progress) -> Times:
        """Times of operators in float and on codes, and of the conversions between."""

    def latencies(self, decided: Decided, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Nanoseconds of a run with nothing on codes, and of one like the plan with the table's numbers."""

    def profiles(self, decided: Decided, options: CompileOptions, fitted: Fitted) -> tuple[Profile, Profile]:
        """Nanoseconds of the float network and of what is delivered, with those of operators and conversions."""


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
        return clocks.OnnxRuntimeClock()
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
    network, times = clocks.network_of(job.decided), given
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
    plan = clocks.any_plan(decided, job.options, decided.activations)
    real, found = clock.latencies(decided, job.options, plan)
    network, times = timed.network, timed.times
    return network.predict(times, plan.params), found / real * network.predict(times, ())
