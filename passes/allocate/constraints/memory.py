"""A budget of memory: activations and formats chosen for it, and files of them measured, until one keeps it."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import onnx_ir as ir
import onnxruntime as ort

from ptqc.codegen.onnxruntime.size import loaded_bytes
from ptqc.codegen.targets import Chosen, SizedTarget
from ptqc.errors import Infeasible, UsageError
from ptqc.evaluation.judge import one_sample
from ptqc.execution.memory import run_bytes
from ptqc.execution.onnxruntime import Feeds, Runner, is_lean, tensors_of
from ptqc.execution.shapes import observed_shapes
from ptqc.execution.speed import Subject
from ptqc.ir.external import is_in_files
from ptqc.ir.plan import Plan
from ptqc.ir.sites import source_params
from ptqc.notes import Level, Note
from ptqc.options import Activations
from ptqc.passes.allocate.allocation import BYTES, Candidate, smallest_choice
from ptqc.passes.allocate.choose_activations import ActivationLoss, limit_of
from ptqc.passes.allocate.constraints.clocks import everything_of
from ptqc.passes.allocate.constraints.microcontroller import RamBudget
from ptqc.passes.allocate.cost_model import OpLatencies, Timed
from ptqc.passes.allocate.fit import best_within
from ptqc.passes.allocate.joint import NANOSECONDS, Stored, WeightCosts, weight_choice, with_memory
from ptqc.passes.allocate.joint_budgets import weighed_of, within_size
from ptqc.passes.allocate.joint_sites import least_loss, note_on_loss, pinned, program_of, sites_of, smallest
from ptqc.passes.allocate.memory_model import MemoryModel
from ptqc.passes.allocate.problem import packed, problem_of, table_parameters
from ptqc.passes.allocate.state import (
    BudgetReport,
    CompileState,
    Constraint,
    Context,
    Quantity,
    QuantizedModel,
)
from ptqc.passes.base import Effect, Result
from ptqc.passes.quantize.phases import Analysis, Sensitivities
from ptqc.solver.integer_program import Answer, Goal, JointChoice, NoSelection, Proof, Selection, solve

# Behind a unit of bytes: of memory, not of the file.
SUFFIX = "ram"
# The limit where none is given: memory is measured all the same.
UNLIMITED = sys.maxsize


@dataclass(frozen=True)
class MemoryBudget(Constraint):
    """A limit on the bytes that the file needs when it is loaded and run on one sample."""

    bytes: int
    kind: ClassVar[str] = "memory"
    section: ClassVar[str] = "memory"
    examples: ClassVar[Mapping[str, str]] = {
        "60MBram": "memory of the file when ONNX Runtime has loaded it and runs one sample",
    }

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "60MBram"; what names a target is memory of a microcontroller."""
        size = None if quantity.target else quantity.bytes(SUFFIX)
        return None if size is None else cls(int(size))

    @classmethod
    def default(cls) -> Self:
        return cls(UNLIMITED)

    def both(self, other: Self) -> Self:
        return min(self, other, key=lambda one: one.bytes)

    @property
    def chooses_activations(self) -> bool:
        return self.bytes < UNLIMITED

    def for_target(self, target: Chosen | None) -> tuple[Constraint, ...]:
        """That of a microcontroller where a network is built for one; memory is then measured all the same."""
        if target is None or not self.chooses_activations or not isinstance(target.target, SizedTarget):
            return (self,)
        return (MemoryBudget(UNLIMITED), RamBudget(self.bytes, target.name, target))

    def decide(self, job: CompileState, context: Context) -> CompileState:
        """Choose activations, and a limit for weights, whose file keeps the budget; a fixed plan is only checked.

        Raises Infeasible, and UsageError where a fixed plan does not fit.
        """
        if not self.chooses_activations:
            return job
        with context.progress.stage("meet the memory"):
            model = memory_model(job.analysis)
            if context.plan is not None:
                if (needed := _measure(job, model, context.plan)) > self.bytes:
                    raise UsageError(f"the file of the given plan needs {needed:,} bytes, over the budget of {self}")
                return job
            try:
                return _chosen(job, self, model)
            except Infeasible as refusal:
                raise Infeasible(f"{refusal}. {COUNTED}", refusal.smallest, refusal.blockers) from None

    def report(self, job: CompileState, fitted: QuantizedModel, context: Context) -> BudgetReport:  # noqa: ARG002
        """The bytes of a delivered file, with what was predicted of a run."""
        analysis, predicted = job.analysis, memory_model(job.analysis)
        proto, quantized = fitted.exported.proto, fitted.plan.params
        if is_lean(proto, analysis.model):  # it is not loaded as a whole, all of its weights in float
            formats = sum(candidate.memory for candidate in fitted.problem.chosen(fitted.plan.formats))
            weights, measured = predicted.loaded(quantized) + formats, None
        else:
            weights, measured = loaded_bytes(proto), run_bytes(Subject(proto, sample_of(analysis)))
        expected = predicted.peak(quantized) - predicted.loaded(quantized)
        needed = weights + (expected if measured is None else measured)
        document = {
            "runtime": RUNTIME,
            "weights_bytes": weights,
            "run_bytes": measured,
            "predicted_run_bytes": expected,
            "needed_bytes": needed,
            "budget": str(self) if self.chooses_activations else None,
            "limit_bytes": self.bytes if self.chooses_activations else None,
        }
        return BudgetReport(document, _over(needed, self))

    def __str__(self) -> str:
        return f"{self.bytes:,} B of memory"


# What the delivered file needs of memory: its weights as they are loaded, and at most in a run of one sample.

STEP = "memory"
RUNTIME = f"ONNX Runtime {ort.__version__}"
COUNTED = "This counts the memory of ONNX Runtime; with --target c, the budget counts the RAM of the C source"


def memory_model(analysis: Analysis) -> MemoryModel:
    """What the memory of a choice of activations is predicted from, with the shapes of one sample."""
    model, feeds = analysis.model, sample_of(analysis)
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    names = [str(value.name) for value in values if value.is_graph_output() or value.consumers()]
    shapes = _shapes(model, feeds, [name for name in names if name not in feeds])
    return MemoryModel.of(model, everything_of(analysis), {name: shapes[name] for name in names if name in shapes})


def _shapes(model: ir.Model, feeds: Feeds, inner: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Of inputs and inner values; of a model beyond memory not all values are there at a time."""
    if is_in_files(model):
        return observed_shapes(model, feeds)
    result = {**feeds, **tensors_of(Runner(model, inner).run(feeds, inner))}
    return {name: array.shape for name, array in result.items()}


def sample_of(analysis: Analysis) -> Feeds:
    """The feeds of one sample, or of as many as the model takes at once."""
    return one_sample(analysis.model, analysis.held_back)[0]


def _over(needed: int, budget: MemoryBudget) -> tuple[Note, ...]:
    if needed <= budget.bytes:
        return ()
    message = f"the file needs {needed:,} bytes when it is loaded and run, over the budget of {budget}: give more"
    return (Note(STEP, "", message, Level.WARNING),)


# The choice itself: sites and weights are one integer program (`ptqc.passes.allocate.joint`), whose resources are the
# bytes of each step of a run, and time and size where there are budgets of them. Where formats of weights alone can
# keep the memory, as of weights that stay packed, the activations stay as they were chosen.

ATTEMPTS = 8
# Share of the bytes by which the least memory that is told may be too large.
PRECISION = 2e-3
NO_TIMES = OpLatencies("", {}, {}, {}, {})
NAMES = {NANOSECONDS: "time", BYTES: "size"}


@dataclass(frozen=True)
class MeetMemory:
    """Choose the 8-bit activations that keep a budget of memory, and those beside it, at the least loss.

    more: bytes that a file needs beyond what the model predicts. activations, limit: as in `ChooseActivations`; only
    "auto" leaves a choice. weighed: what weights cost. timed: a latency that is kept, too.
    """

    memory: MemoryModel
    budget: MemoryBudget
    more: int = 0
    activations: Activations = "auto"
    limit: float = 0.0
    weighed: WeightCosts = field(default_factory=WeightCosts)
    timed: Timed | None = None
    name: ClassVar[str] = "meet-memory"
    effect: ClassVar[Effect] = Effect.DECIDE

    def apply(self, analysis: Analysis) -> Result[Analysis]:
        """The decision with the activations that keep the budgets, what they lose together, and how much of the memory
        is left for the weights.

        Raises Infeasible with the least memory that is predicted, alone and within the other budgets.
        """
        least, most_of_weights = self._weights(analysis)
        if self._over(analysis, analysis.activations, most_of_weights) <= 0:
            return Result(analysis, False)
        program, most = self.program(analysis)
        if self._over(analysis, analysis.activations, least) <= 0 and self._may_stay(analysis, program, most):
            return Result(self._with_weights(analysis), True)
        if self.activations != "auto":
            raise self._refusal(analysis, pinned(analysis, program), most, f" with {self.activations} activations")
        slack = 0
        for _ in range(ATTEMPTS):
            result = self._solved(program, most, slack)
            if result is None:
                break
            goal, answer = result
            sites = sites_of(analysis, answer.selection)
            over = self._over(analysis, {site.name: None for site in sites}, self._chosen(analysis, answer.selection))
            if over <= 0:
                chosen = {site.name: analysis.ranges[site.name] for site in sites}
                lost = ActivationLoss(analysis).loss_of(source_params(sites, analysis.ranges))
                proof = Proof(program, goal, answer, {resource: NAMES[resource] for resource in self._others})
                decided = replace(analysis, activations=chosen, activation_loss=lost, proof=proof)
                note = note_on_loss(self.name, analysis, lost, self.limit, self.budget)
                return Result(self._with_weights(decided), True, (note,))
            # Sites that serve no layer were dropped, and what they carried takes more in float.
            slack += over
        raise self._refusal(analysis, program, most)

    def program(self, sensitivities: Sensitivities) -> tuple[JointChoice, dict[str, int]]:
        """Weights and sites with their losses, times, bytes in the file and bytes at each step; of these the most."""
        times = NO_TIMES if self.timed is None else self.timed.times
        program = program_of(sensitivities, self.weighed, self.memory.network, times)
        return with_memory(program, self.memory, {t: site.name for t, site in sensitivities.site_of.items()})

    def within(self, limit: int) -> "MeetMemory":
        """The same with another limit for the size."""
        return replace(self, weighed=replace(self.weighed, limit=limit))

    def smallest(self, analysis: Analysis) -> float:
        """About the bytes of the smallest file with the activations that were chosen: as the program has them."""
        return smallest(analysis, self.program(analysis)[0])

    @property
    def _others(self) -> dict[str, float]:
        result = {} if self.timed is None else {NANOSECONDS: self.timed.limit}
        return result if self.weighed.limit is None else {**result, BYTES: float(self.weighed.limit)}

    def _may_stay(self, analysis: Analysis, program: JointChoice, most: Mapping[str, int]) -> bool:
        """Whether formats keep the budgets beside the activations, and other activations would lose little less.

        These compute on integers for what they may lose, and other ones have to be better by as much.
        """
        stays = self._solved(pinned(analysis, program), most)
        if stays is None or self.activations != "auto":
            return stays is not None
        free, limit = self._solved(program, most), limit_of(analysis.loss_unit, self.limit)
        return free is None or stays[1].value - free[1].value <= limit

    def _solved(self, program: JointChoice, most: Mapping[str, int], slack: int = 0) -> tuple[Goal, Answer] | None:
        """The least loss within all budgets; None where they cannot be kept. slack: bytes that are left unused."""
        limits = {**self._others, **_limits(most, self.budget.bytes - self.more - slack)}
        goal = least_loss(limits, self._others)
        try:
            return goal, solve(program, goal)
        except NoSelection:
            return None

    def _with_weights(self, analysis: Analysis) -> Analysis:
        """The decision with what its activations leave of the memory."""
        return replace(analysis, weight_memory=-self._over(analysis, analysis.activations, 0))

    def _weights(self, analysis: Analysis) -> tuple[int, int]:
        """The least and the most that formats of weights add to the memory, with the activations that were chosen."""
        least = most = 0
        for group in self._candidates(analysis.tensors_of(analysis.activations)).values():
            least += min(candidate.memory for candidate in group)
            most += max(candidate.memory for candidate in group)
        return least, most

    def _candidates(self, quantized: Mapping[str, object]) -> dict[str, list[Candidate]]:
        """What each weight may be stored as when these tensors are quantized."""
        codes, weighed = self.memory.network.on_codes(quantized), self.weighed
        on_codes = weighed.on_codes.by_weight()
        return {
            name: group if codes.isdisjoint(weighed.layers.get(name, ())) else on_codes[name]
            for name, group in weighed.in_float.by_weight().items()
        }

    def _chosen(self, sensitivities: Sensitivities, selection: Selection) -> int:
        """What the formats of a selection add to the memory, or more where sites that serve no layer are dropped."""
        quantized = sensitivities.tensors_of({site.name: None for site in sites_of(sensitivities, selection)})
        chosen = {choice: state.form for choice, state in selection.items() if isinstance(state, Stored)}
        return sum(
            next((c.memory for c in group if c.form == chosen[weight_choice(name)]), max(c.memory for c in group))
            for name, group in self._candidates(quantized).items()
        )

    def _over(self, sensitivities: Sensitivities, sites: Mapping[str, object], weights: int) -> int:
        """Bytes beyond the budget. weights: what their formats add."""
        return self.memory.peak(sensitivities.tensors_of(sites)) + self.more + weights - self.budget.bytes

    def _refusal(
        self, sensitivities: Sensitivities, program: JointChoice, most: Mapping[str, int], how: str = ""
    ) -> Infeasible:
        alone = self._least(sensitivities, program, most, {})
        if alone is None or alone > self.budget.bytes or not self._others:
            return self._infeasible(alone or self.budget.bytes, how)
        beside = self._least(sensitivities, program, most, self._others)
        kinds = " and ".join(NAMES[resource] for resource in self._others)
        within = (
            "cannot be met with any amount of memory" if beside is None else f"need at least about {beside:,} bytes"
        )
        return Infeasible(
            f"the budget of {self.budget} contradicts the others: those of {kinds} {within}; alone, about {alone:,} "
            f"bytes of memory can be reached{how}",
            beside or alone,
        )

    def _least(
        self, sensitivities: Sensitivities, program: JointChoice, most: Mapping[str, int], others: Mapping[str, float]
    ) -> int | None:
        """About the least memory within other limits, by halving; None where these cannot be kept."""
        largest = max(most, key=lambda step: most[step])
        try:
            best = self._reached(sensitivities, solve(program, Goal(largest, others)).selection)
        except NoSelection:
            return None
        low = 0
        while best - low > PRECISION * best:
            middle = (low + best) // 2
            tried = {**others, **_limits(most, middle - self.more)}
            try:
                best = min(middle, self._reached(sensitivities, solve(program, Goal(largest, tried)).selection))
            except NoSelection:
                low = middle
        return best

    def _reached(self, sensitivities: Sensitivities, selection: Selection) -> int:
        sites = {site.name: None for site in sites_of(sensitivities, selection)}
        return self.budget.bytes + self._over(sensitivities, sites, self._chosen(sensitivities, selection))

    def _infeasible(self, least: int, how: str) -> Infeasible:
        alone = self.memory.fixed + sum(self._smallest_weights().values())
        return Infeasible(
            f"the budget of {self.budget} cannot be met: the least that is predicted{how} is about {least:,} bytes; "
            f"weights and other constants alone take at least {alone:,}",
            least,
        )

    def _smallest_weights(self) -> dict[str, int]:
        """What each weight adds at least to the bytes of weights in float32, in any format and on any kernel."""
        weights = {weight.weight: weight.on_codes for weight in self.memory.weights if weight.nodes}
        if self.activations == "float":
            weights = {}
        for name, group in self.weighed.in_float.by_weight().items():
            weights[name] = min(weights.get(name, 0), *(candidate.memory for candidate in group))
        return weights


def _limits(most: Mapping[str, int], allowed: int) -> dict[str, float]:
    """The limit on every step that can exceed it."""
    return {step: float(allowed) for step, size in most.items() if size > allowed}


# How often a choice is corrected by what a file of it needs more than was predicted.
CORRECTIONS = 3


def _chosen(job: CompileState, budget: MemoryBudget, model: MemoryModel) -> CompileState:
    """The compile with a choice whose file keeps the budget; the one that it has where that does."""
    options = job.options
    chosen, (least, more) = job, _needed(job, model)
    if least <= budget.bytes:
        return job
    step = MeetMemory(model, budget, more, options.activations, options.activation_limit, weighed_of(job), job.timed)
    for _ in range(CORRECTIONS):
        try:
            chosen = _with(job, step)
        except Infeasible as refusal:
            raise _measured(job, step, refusal) from None
        needed, more = _needed(chosen, model)
        if needed <= budget.bytes:
            return chosen
        least, step = min(least, needed), replace(step, more=more)
    raise Infeasible(
        f"the budget of {budget} cannot be met: of the files that were predicted to meet it, the smallest needs "
        f"{least:,} bytes",
        least,
    )


def _with(job: CompileState, step: MeetMemory) -> CompileState:
    analysis, notes = within_size(job, step)
    return replace(job, analysis=analysis, notes=(*job.notes, *notes))


def _measured(job: CompileState, step: MeetMemory, refusal: Infeasible) -> Infeasible:
    """A refusal that tells what a file of the least choice really needs."""
    wider = replace(step, budget=MemoryBudget(math.ceil(refusal.smallest * (1 + PRECISION))))
    try:
        needed, _ = _needed(_with(job, wider), step.memory)
    except Infeasible:
        return refusal
    return Infeasible(f"{refusal}; a file of about that was built, and needs {needed:,}", needed)


def _needed(job: CompileState, model: MemoryModel) -> tuple[int, int]:
    """Bytes of a file of the compile's activations and of the best formats, and how many were not predicted."""
    analysis = job.analysis
    problem = problem_of(analysis, analysis.undecided, job.options)
    try:
        formats = best_within(problem, job.limit).choice
    except Infeasible:  # which is told when the file is fitted to its size, if this choice stays
        formats = smallest_choice(problem)
    result = _measure(job, model, analysis.undecided.with_formats(formats))
    predicted = model.peak(analysis.tensors_of(analysis.activations)) + sum(c.memory for c in problem.chosen(formats))
    return result, result - predicted


def _measure(job: CompileState, model: MemoryModel, plan: Plan) -> int:
    """Bytes of a file of a plan."""
    analysis = job.analysis
    _, exported = packed(analysis, plan, table_parameters(analysis, plan.formats), job.options)
    quantized = plan.params
    measured = run_bytes(Subject(exported.proto, sample_of(analysis)))
    predicted = model.peak(quantized) - model.loaded(quantized)
    return loaded_bytes(exported.proto) + (predicted if measured is None else measured)
