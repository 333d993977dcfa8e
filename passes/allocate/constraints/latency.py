"""A budget of time: operators are timed, activations chosen for it, and the delivered file is timed again."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from ptqc.codegen.targets import Chosen
from ptqc.errors import Infeasible, UsageError
from ptqc.execution.speed import Profile
from ptqc.ir.layers import module_labels
from ptqc.ir.plan import Plan
from ptqc.ir.sites import ScaleGroup, source_params
from ptqc.notes import Level, Note
from ptqc.options import Activations, CompileOptions
from ptqc.passes.allocate.allocation import BYTES
from ptqc.passes.allocate.choose_activations import ActivationLoss
from ptqc.passes.allocate.constraints import clocks
from ptqc.passes.allocate.constraints.clocks import LibraryMeter
from ptqc.passes.allocate.cost_model import Network, OpLatencies, Timed
from ptqc.passes.allocate.joint import NANOSECONDS, WeightCosts
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.joint_sites import least_loss, note_on_loss, program_of, sites_of, smallest
from ptqc.passes.allocate.state import BudgetReport, CompileState, Constraint, Context, Quantity, QuantizedModel
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Analysis, Sensitivities
from ptqc.solver.integer_program import Goal, JointChoice, NoSelection, Proof, contradiction, solve
from ptqc.utils.machine import busy, load_average
from ptqc.utils.progress import Progress
from ptqc.utils.store import Store

NANOSECONDS_PER_UNIT = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True)
class LatencyBudget(Constraint):
    """A limit on the time for one run of one sample, in nanoseconds: on one thread of this machine's processor, or as
    it is predicted for a GPU.

    target: whose library has to keep it; "": the file in ONNX Runtime has to.
    """

    nanoseconds: float
    target: str = ""
    kind: ClassVar[str] = "latency"
    section: ClassVar[str] = "latency"
    names_target: ClassVar[bool] = True
    examples: ClassVar[Mapping[str, str]] = {
        "2ms": "one sample on one thread in ONNX Runtime on this machine; also 800us",
        "2ms@cpu": "the same in the native library of --target cpu",
        "50us@cuda": "in the library of --target cuda, predicted for the chips of --gpu",
    }

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "2ms", "800us", "2ms@cpu"."""
        if quantity.unit not in NANOSECONDS_PER_UNIT:
            return None
        return cls(quantity.number * NANOSECONDS_PER_UNIT[quantity.unit], quantity.target)

    def both(self, other: Self) -> Self | None:
        return min(self, other, key=lambda one: one.nanoseconds) if other.target == self.target else None

    @property
    def chooses_activations(self) -> bool:
        return True

    def check_request(self, target: Chosen | None, store: Store, *, is_scored: bool) -> None:  # noqa: ARG002
        """See `meter_of`."""
        meter_of(self, target, store)

    def decide(self, job: CompileState, context: Context) -> CompileState:
        """Choose activations whose predicted latency is within the budget.

        Times of operators that are given are taken as they are; a fixed plan is only checked. Raises Infeasible, and
        UsageError where a fixed plan or given times do not fit.
        """
        clock = meter_of(self, context.target, context.store)
        network, times, load = clocks.network_of(job.analysis), context.times, None
        if times is None:
            load = load_average()
            times = clock.measure(job.analysis, job.options, context.progress)
        else:
            _check_of_this(times, network)
            _check_where(times, self, job.options)
        timed = Timed(self.nanoseconds, network, times, load if times.is_measured else None)
        if context.plan is not None:
            _check(self, timed, context.plan)
            return replace(job, timed=timed)
        weighed = weighed_of(job)
        if context.times is not None:
            analysis, notes = _choose(job, self, timed, weighed)
        else:
            with context.progress.stage("choose for the latency"):
                analysis, timed, notes = _choose_and_correct(job, self, clock, timed, weighed)
        return replace(job, analysis=analysis, timed=timed, notes=(*job.notes, *notes))

    def report(self, job: CompileState, fitted: QuantizedModel, context: Context) -> BudgetReport:
        """Time what is delivered, or predict it where it runs on another machine."""
        assert job.timed is not None
        clock, what = meter_of(self, context.target, context.store), "library" if self.target else "file"
        measured = job.timed.times.is_measured
        with context.progress.stage(f"{'time' if measured else 'predict the time of'} the {what}"):
            load, profiles = load_average(), clock.profiles(job.analysis, job.options, fitted)
        return latency_report(self, job.timed, fitted.plan, *profiles, load)

    def revise(self, job: CompileState, report: BudgetReport, context: Context) -> CompileState | None:
        """Choose activations for longer times where the file took longer than its budget and others may keep it."""
        timed = job.timed
        if timed is None or not report.notes or context.times is not None or context.plan is not None:
            return None
        predicted, measured = report.document["predicted_ms"], report.document["measured_ms"]
        if measured is None or measured <= predicted:
            return None
        longer = replace(timed, times=timed.times.scaled(measured / predicted))
        try:
            analysis, notes = _choose(job, self, longer, weighed_of(job))
        except Infeasible:
            return None
        if analysis.activations.keys() == job.analysis.activations.keys():
            return None
        message = f"a file predicted to take {predicted:.3g} ms took {measured:.3g} ms: activations were chosen again"
        return replace(job, analysis=analysis, timed=longer, notes=(*job.notes, *notes, Note("latency", "", message)))

    def __str__(self) -> str:
        return f"{self.nanoseconds / 1e6:g} ms{f'@{self.target}' if self.target else ''}"


# Where a latency counts: what measures operators and files there.


class LatencyMeter(Protocol):
    """Measures on this machine: one sample on one thread, in turns with the float network. Or predicts for another."""

    def measure(self, analysis: Analysis, options: CompileOptions, progress: Progress) -> OpLatencies:
        """Times of operators in float and on codes, and of the conversions between."""

    def latencies(self, analysis: Analysis, options: CompileOptions, plan: Plan) -> tuple[float, float]:
        """Nanoseconds of a run with nothing on codes, and of one like the plan with the table's numbers."""

    def profiles(self, analysis: Analysis, options: CompileOptions, fitted: QuantizedModel) -> tuple[Profile, Profile]:
        """Nanoseconds of the float network and of what is delivered, with those of operators and conversions."""


def meter_of(budget: LatencyBudget, chosen: Chosen | None, store: Store) -> LatencyMeter:
    """What tells a latency: in ONNX Runtime, or in the library of the target that is built.

    Raises UsageError where the budget names a target that is not built for certain, TargetError where its library
    cannot be timed here.
    """
    if not budget.target:
        return clocks.OnnxRuntimeMeter()
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
    return LibraryMeter.of(chosen, store.folder)


# What a compile with a latency budget tells: predicted and measured times, whole and of each operator.
#
# Where no time is measured, as of a library for chips that are not here, what was delivered is predicted once more,
# kernel by kernel; what would be measured is null then.

MILLISECOND, MICROSECOND = 1e6, 1e3
STEP = "latency"
# Where a time was measured.
REMEDY = "run it again where nothing else runs, or allow more time"


def latency_report(
    budget: LatencyBudget, timed: Timed, plan: Plan, real: Profile, profile: Profile, load: float
) -> BudgetReport:
    """The times of a delivered file beside its prediction. real: of the float network at the same time."""
    is_measured = timed.times.is_measured
    predicted = timed.network.predict(timed.times, plan.params) if is_measured else profile.nanoseconds
    document = {
        "budget": str(budget),
        "budget_ms": budget.nanoseconds / MILLISECOND,
        "runtime": timed.times.runtime,
        "predicted_ms": predicted / MILLISECOND,
        "measured_ms": profile.nanoseconds / MILLISECOND if is_measured else None,
        "float_ms": real.nanoseconds / MILLISECOND,
        "operators": _operators(timed, plan, profile.charges),
        "conversions": _conversions(timed, plan, profile.charges),
        "times": timed.times.to_json(),
    }
    return BudgetReport(document, _over_budget(budget, timed.times, profile, load))


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
    conversions = timed.network.conversion_times(timed.times, plan.params)
    taken = sum(ns for key, ns in charges.items() if key not in operators)
    return {
        "tensors": len(conversions),
        "predicted_us": (sum(conversions.values()) if timed.times.is_measured else taken) / MICROSECOND,
        "measured_us": taken / MICROSECOND if timed.times.is_measured else None,
    }


def _over_budget(budget: LatencyBudget, times: OpLatencies, profile: Profile, load: float) -> tuple[Note, ...]:
    if profile.nanoseconds <= budget.nanoseconds:
        return ()
    what = "one run of the library" if budget.target else "one run"
    took, remedy, cause = "is predicted to take", "allow more time", ""
    if times.is_measured:
        took, remedy, cause = "took", REMEDY, f"; {machine}" if (machine := busy(load)) else ""
    message = f"{what} {took} {profile.nanoseconds / MILLISECOND:.3g} ms, over the budget of {budget}{cause}: {remedy}"
    return (Note(STEP, "", message, Level.WARNING),)


# How often the times are corrected by what a file of the chosen activations really takes.
CORRECTIONS = 2


def recorded_times(manifest: Mapping[str, Any]) -> OpLatencies | None:
    """The times of operators that an artifact was compiled with, if a latency was asked for."""
    latency = manifest.get("latency")
    return None if latency is None else OpLatencies.from_json(latency["times"])


def fitting_times(
    manifest: Mapping[str, Any], budget: LatencyBudget | None, options: CompileOptions
) -> OpLatencies | None:
    """The same where they were measured of what this budget is of; what was predicted is predicted again."""
    recorded = recorded_times(manifest)
    if recorded is None or budget is None or not recorded.is_measured or recorded.target != budget.target:
        return None
    return recorded if recorded.in_blocks == _times_blocks(budget, options) else None


def _times_blocks(budget: LatencyBudget, options: CompileOptions) -> bool:
    """Whether a budget is of a file whose products in float may keep their weights packed."""
    return options.in_blocks and not budget.target


def _check_of_this(times: OpLatencies, network: Network) -> None:
    known = {operator.node for operator in network.operators}
    if unknown := sorted((times.floats.keys() | times.integers.keys()) - known):
        raise UsageError(f"the times given are of another model: it has no operator that makes {unknown[0]!r}")


def _check_where(times: OpLatencies, budget: LatencyBudget, options: CompileOptions) -> None:
    if times.target != budget.target:
        where = f"--budget {budget.nanoseconds / 1e6:g}ms{f'@{times.target}' if times.target else ''}"
        raise UsageError(
            f"the recorded times are of {times.runtime}, and the budget {budget} is of another: ask for {where}, or "
            "measure without --times"
        )
    if times.in_blocks != _times_blocks(budget, options):
        timed = "packed" if times.in_blocks else "unpacked"
        raise UsageError(
            f"the recorded times are of float matmuls with {timed} weights, and operators is {options.operators!r}: "
            "give those that were timed, or measure without --times"
        )


def _check(budget: LatencyBudget, timed: Timed, plan: Plan) -> None:
    predicted = timed.network.predict(timed.times, plan.params)
    if predicted > budget.nanoseconds:
        raise UsageError(f"the given plan is predicted to take {predicted / 1e6:.3g} ms, over the budget of {budget}")


def _choose(
    job: CompileState, budget: LatencyBudget, timed: Timed, weighed: WeightCosts
) -> tuple[Analysis, list[Note]]:
    """The activations of least loss within the predicted time, with formats of weights that keep the size."""
    options = job.options
    allowed = (options.activations, options.activation_limit)
    return within_size(job, MeetLatency(timed.network, timed.times, budget, *allowed, weighed, timed.load))


def _choose_and_correct(
    job: CompileState, budget: LatencyBudget, clock: LatencyMeter, measured: Timed, weighed: WeightCosts
) -> tuple[Analysis, Timed, list[Note]]:
    """Choose; where a file of the choice takes longer than the budget, correct all times by its ratio and choose again.

    Raises Infeasible where even the measured times allow no choice; corrected ones only end the search.
    """
    timed = measured
    analysis, notes = _choose(job, budget, timed, weighed)
    for _ in range(CORRECTIONS):
        predicted, actual = _trial(job, clock, analysis, measured)
        if actual <= budget.nanoseconds:
            break
        corrected = replace(timed, times=measured.times.scaled(actual / predicted))
        try:
            analysis, notes = _choose(job, budget, corrected, weighed)
        except Infeasible:
            break
        timed = corrected
    return analysis, timed, notes


def _trial(job: CompileState, clock: LatencyMeter, analysis: Analysis, timed: Timed) -> tuple[float, float]:
    """Predicted and actual nanoseconds of a file with the activations that were chosen.

    The actual time is relative to that of nothing on codes at the same moment, as the machine may have slowed down.
    """
    plan = clocks.any_plan(analysis, job.options, analysis.activations)
    real, quantized = clock.latencies(analysis, job.options, plan)
    network, times = timed.network, timed.times
    return network.predict(times, plan.params), quantized / real * network.predict(times, ())


# The choice itself: sites and weights are one integer program (`ptqc.passes.allocate.joint`); its time is that of the
# cost model, its bytes those of the file where there is a budget of size too. A choice within the activation limit that
# keeps the budgets already stays.

ATTEMPTS = 8
SLOWEST_PARTS = 5
NAMES = {NANOSECONDS: "time", BYTES: "size"}


@dataclass(frozen=True)
class MeetLatency:
    """Choose the 8-bit activations that keep a latency budget, and one of size beside it, at the least loss.

    activations, limit: as in `ChooseActivations`; only "auto" leaves a choice. weighed: what weights cost. load: as in
    `Timed`.
    """

    network: Network
    times: OpLatencies
    budget: LatencyBudget
    activations: Activations = "auto"
    limit: float = 0.0
    weighed: WeightCosts = field(default_factory=WeightCosts)
    load: float | None = None
    name: ClassVar[str] = "meet-latency"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, analysis: Analysis) -> Result[Analysis]:
        """The decision with the activations that keep the budgets, and what they lose together.

        Raises Infeasible with the shortest predicted latency, or with what budgets that contradict each other need.
        """
        quantized = analysis.tensors_of(analysis.activations)
        is_fast = self._predict(quantized) <= self.budget.nanoseconds
        if is_fast and (self.activations != "auto" or self._fits(analysis)):
            return Result(analysis, False)
        if self.activations != "auto":
            raise self._infeasible(analysis, quantized, f" with {self.activations} activations")
        sites, proof = self._least_loss(analysis, self.program(analysis))
        chosen = {site.name: analysis.ranges[site.name] for site in sites}
        loss = ActivationLoss(analysis).loss_of(source_params(sites, analysis.ranges))
        decided = replace(analysis, activations=chosen, activation_loss=loss, proof=proof)
        return Result(decided, True, (note_on_loss(self.name, analysis, loss, self.limit, self.budget),))

    def program(self, sensitivities: Sensitivities) -> JointChoice:
        """Weights and sites with their losses, times and bytes."""
        return program_of(sensitivities, self.weighed, self.network, self.times)

    @property
    def _limits(self) -> dict[str, float]:
        return {NANOSECONDS: self.budget.nanoseconds, **self._size_limit}

    @property
    def _size_limit(self) -> dict[str, float]:
        return {} if self.weighed.limit is None else {BYTES: float(self.weighed.limit)}

    def _predict(self, quantized: Mapping[str, object]) -> float:
        return self.network.predict(self.times, quantized)

    def within(self, limit: int) -> "MeetLatency":
        """The same with another limit for the size."""
        return replace(self, weighed=replace(self.weighed, limit=limit))

    def smallest(self, analysis: Analysis) -> float:
        """About the bytes of the smallest file with the activations that were chosen: as the program has them."""
        return smallest(analysis, self.program(analysis))

    def _fits(self, analysis: Analysis) -> bool:
        return self.weighed.limit is None or self.smallest(analysis) <= self.weighed.limit

    def _least_loss(self, sensitivities: Sensitivities, program: JointChoice) -> tuple[list[ScaleGroup], Proof | None]:
        """The sites, and what is proven of the choice."""
        limits = self._limits
        try:
            fastest = sites_of(sensitivities, solve(program, Goal(NANOSECONDS, self._size_limit)).selection)
            shortest = self._time(sensitivities, fastest)
            for _ in range(ATTEMPTS):
                goal = least_loss(limits, limits)
                answer = solve(program, goal)
                sites = sites_of(sensitivities, answer.selection)
                over = self._time(sensitivities, sites) - self.budget.nanoseconds
                if over <= 0:
                    return sites, Proof(program, goal, answer, {r: NAMES[r] for r in limits})
                # Sites that serve no layer were dropped, and what they carried takes longer in float.
                limits[NANOSECONDS] = max(limits[NANOSECONDS] - over, shortest)
        except NoSelection:
            raise self._refusal(sensitivities, program) from None
        return fastest, None

    def _time(self, sensitivities: Sensitivities, sites: list[ScaleGroup]) -> float:
        return self._predict(sensitivities.tensors_of({site.name for site in sites}))

    def _refusal(self, sensitivities: Sensitivities, program: JointChoice) -> Infeasible:
        result = contradiction(program, self._limits)
        if result.resources != (NANOSECONDS, BYTES):
            fastest = sites_of(sensitivities, solve(program, Goal(NANOSECONDS)).selection)
            if NANOSECONDS in result.resources:
                return self._infeasible(sensitivities, sensitivities.tensors_of({site.name for site in fastest}))
        size, beside = self.weighed.limit or 0, result.beside
        least, shortest = beside.get(BYTES) or result.alone[BYTES], beside.get(NANOSECONDS) or result.alone[NANOSECONDS]
        return Infeasible(
            f"the budgets of {size:,} bytes and {self.budget} contradict each other: within {self.budget} about "
            f"{least:,.0f} bytes are the fewest, within the bytes {shortest / 1e6:.3g} ms the shortest; alone, about "
            f"{result.alone[BYTES]:,.0f} bytes and {result.alone[NANOSECONDS] / 1e6:.3g} ms can be reached",
            round(least),
        )

    def _infeasible(self, sensitivities: Sensitivities, quantized: Mapping[str, object], how: str = "") -> Infeasible:
        shortest = self._predict(quantized)
        codes, labels = self.network.on_codes(quantized), module_labels(sensitivities.weights)
        types = {operator.node: operator.op_type for operator in self.network.operators}
        parts = [
            (f"{labels.get(node, node)} ({types[node]} {'on integers' if node in codes else 'in float'})", int(ns))
            for node, ns in self.network.operator_times(self.times, quantized).items()
        ]
        parts.append(("conversions", int(sum(self.network.conversion_times(self.times, quantized).values()))))
        slowest = tuple(sorted(parts, key=lambda part: -part[1])[:SLOWEST_PARTS])
        named = ", ".join(f"{what} {ns / 1e6:.3g} ms" for what, ns in slowest)
        where = " on this machine" if self.times.is_measured else ""
        advice = ""
        if self.load is not None:
            machine = busy(self.load)
            advice = f". When operators were timed, {machine}: {REMEDY}" if machine else f". {REMEDY.capitalize()}"
        return Infeasible(
            f"the budget of {self.budget} cannot be met{where}: the shortest predicted latency{how} is "
            f"{shortest / 1e6:.3g} ms in {self.times.runtime}. Slowest: {named}{advice}",
            round(shortest),
            slowest,
            unit="ns",
        )
