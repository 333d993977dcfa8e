"""What fitting a plan to a limit is made of: the search for a plan, its reconstructions, and the best of its files."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import onnx
import onnx_ir as ir

from ptqc.calibration.samples import Samples
from ptqc.codegen.onnxruntime.verify import Verified, verify
from ptqc.codegen.onnxruntime.verify_semantics import Intent
from ptqc.errors import Infeasible, InternalError, ModelError, UsageError, VerificationError
from ptqc.execution.onnxruntime import Runner, open_packed
from ptqc.execution.tensors import outputs_in_files
from ptqc.execution.walk import Values
from ptqc.formats import Format
from ptqc.ir.external import is_in_files
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight
from ptqc.losses import Kinds, OutputLoss
from ptqc.notes import Note, out_of_time
from ptqc.options import CompileOptions, Pipeline
from ptqc.passes.allocate.allocation import Allocation, Problem, allocate, best_choice, smallest_choice, smallest_within
from ptqc.passes.allocate.file_account import FileAccount
from ptqc.passes.allocate.problem import lower, pack, packed, problem_of, weighed
from ptqc.passes.allocate.state import AllocatedPlan, CompileState, PackedModel, QuantizedModel
from ptqc.passes.effects import applied, check_tuned
from ptqc.passes.quantize.phases import Analysis, AnalyzedPlan, TunablePlan
from ptqc.passes.reconstruct.features import TuneFeatures
from ptqc.passes.reconstruct.reconstruct import Earlier, Reconstruct, reconstruct_all
from ptqc.solver.integer_program import PROVEN
from ptqc.utils.store import Store

# Packed files against the float model, on held-back samples.

COMPARED_SAMPLES = 64


class HeldBackLoss:
    """Mean loss of packed files, in the unit of the kinds. Each file is run once, the float model when it is needed."""

    def __init__(self, model: ir.Model, held_back: Samples, kinds: Kinds) -> None:
        self._samples = held_back.some(COMPARED_SAMPLES)
        self._model, self._kinds = model, kinds
        self._known = dict[bytes, float]()

    @classmethod
    def of(cls, analysis: Analysis) -> Self:
        """The loss on the held-back samples of an analysis."""
        return cls(analysis.model, analysis.held_back, analysis.kinds)

    def __call__(self, file: onnx.ModelProto) -> float:
        """Loss of a file. Raises VerificationError for a file that does not load or has other outputs."""
        if is_in_files(self._model):  # the bytes of such a file lie elsewhere
            return self._measure(file)
        digest = hashlib.sha256(file.SerializeToString(deterministic=True)).digest()
        if digest not in self._known:
            self._known[digest] = self._measure(file)
        return self._known[digest]

    @cached_property
    def _expected(self) -> list[Values]:
        real = Runner(self._model)
        return outputs_in_files(real.run(feeds) for feeds in self._samples)

    @cached_property
    def _loss(self) -> OutputLoss:
        return OutputLoss.of(self._kinds, self._expected)

    def _measure(self, file: onnx.ModelProto) -> float:
        try:
            packed = open_packed(file, self._model)
        except ModelError as error:
            raise VerificationError(f"the written file does not load: {error}") from error
        if packed.outputs != list(self._expected[0]):
            raise VerificationError(f"the written file's interface has other outputs: {', '.join(packed.outputs)}")
        outputs = (packed.run(feeds) for feeds in self._samples)
        return self._loss.mean(self._expected, outputs)


# Reconstructed numbers of plans in the store: the same compile with another target, say, finds them done.


@dataclass(frozen=True)
class StoredParameters:
    """What reconstructing gave for plans over one measuring run.

    measured: name of the run's entry, whose key has all else that the numbers follow from: model, samples, versions.
    limit: bytes of the file.
    """

    store: Store
    measured: str
    limit: int | None = None

    def find(self, plan: Plan, draws: Sequence[int]) -> list[QuantizedParameters] | None:
        """The numbers of a plan from these draws, mapped from the store's file, if they are there."""
        entry = self.store.get(self._key(plan, draws))
        return None if entry is None else [_unpack(each, entry.arrays) for each in entry.document]

    def put(self, plan: Plan, tuned: Sequence[QuantizedParameters]) -> None:
        """Store the numbers of a plan from every draw. Raises Interrupted when they cannot be written."""
        arrays: dict[str, np.ndarray] = {}
        document = [_pack(numbers, arrays) for numbers in tuned]
        self.store.put(self._key(plan, [numbers.draw for numbers in tuned]), document, arrays)

    def _key(self, plan: Plan, draws: Sequence[int]) -> Mapping[str, Any]:
        key = {"step": Reconstruct.name, "measured": self.measured, "plan": plan.to_json(), "draws": list(draws)}
        return {**key, "limit": self.limit}


def _pack(numbers: QuantizedParameters, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What can be told in JSON; arrays are added, and named by their places."""

    def place(array: np.ndarray) -> str:
        name = str(len(arrays))
        arrays[name] = array
        return name

    weights = [
        [name, str(solution.form), solution.axis, place(solution.codes), place(solution.scale)]
        for name, solution in numbers.weights.items()
    ]
    biases = [[name, None if bias is None else place(bias)] for name, bias in numbers.biases.items()]
    return {"weights": weights, "biases": biases, "losses": numbers.losses, "draw": numbers.draw}


def _unpack(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> QuantizedParameters:
    before, after = document["losses"]
    return QuantizedParameters(
        {
            n: QuantizedWeight(Format.parse(form), arrays[c], arrays[s], axis)
            for n, form, axis, c, s in document["weights"]
        },
        {name: None if place is None else arrays[place] for name, place in document["biases"]},
        losses=(before, after),
        draw=document["draw"],
    )


def stored_parameters(job: CompileState, store: Store) -> StoredParameters | None:
    """Where reconstructed numbers are kept; of a model beyond memory they are too many to be held at once."""
    return None if is_in_files(job.model) else StoredParameters(store, job.entry, job.limit)


# Of the time that is left, where there is a limit, for one plan.
FITTING_SHARE = 0.5
# Held-back samples that a file is verified on.
VERIFIED_SAMPLES = 4
ATTEMPTS = 8
# Bytes that a first plan leaves: two units of biases or scales that only reconstruction brings, 14 bytes each. Without
# them, files of kilobytes are over the limit by a few bytes and are reconstructed again.
RESERVED = 28
# Of the predicted loss: what is less than this share is worth another reconstruction.
CLEARLY_LESS = 0.95
# How many times a plan is reconstructed; the result with the least held-back loss is taken.
TRIES: Mapping[Pipeline, int] = {"light": 2, "advanced": 6}
DRAWS_AT_ONCE = 2


class Search(Protocol):
    """Where plans come from, one after the other, until the file of one is taken."""

    @property
    def limit(self) -> int | None:
        """Bytes that a file should have at most."""

    @property
    def is_last(self) -> bool:
        """Whether the plan at hand is taken whatever its file has, as there is no other."""

    def allocate(self) -> AllocatedPlan:
        """The next plan. Raises Infeasible."""

    def takes(self, allocated_plan: AllocatedPlan, written: int) -> bool:
        """Whether a plan with a file of so many bytes ends the search."""

    def goes_on(self, allocated_plan: AllocatedPlan, written: int) -> bool:
        """Whether a plan that was taken has a file so much smaller than expected that a better one may fit, too."""


@dataclass(frozen=True)
class OnePlan:
    """A search that has one plan, and takes it whatever its file has."""

    allocated: AllocatedPlan
    limit: int | None = None
    is_last: bool = True

    def allocate(self) -> AllocatedPlan:
        """The plan."""
        return self.allocated

    def takes(self, allocated_plan: AllocatedPlan, written: int) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def goes_on(self, allocated_plan: AllocatedPlan, written: int) -> bool:  # noqa: ARG002
        """Never."""
        return False


def smallest_plan(analysis: Analysis, options: CompileOptions, loss: float) -> AllocatedPlan:
    """The smallest plan whose weights are predicted to lose at most `loss`; the best one where none loses so little."""
    problem = problem_of(analysis, analysis.undecided, options)
    allocation = smallest_within(problem, loss)
    return AllocatedPlan(analysis.undecided.with_formats(allocation.choice), allocation, problem)


def best_within(problem: Problem, limit: int | None) -> Allocation:
    """The best plan of at most `limit` bytes; no more than the best of all needs, as the rest lowers no loss.

    Raises Infeasible.
    """
    most = problem.size(best_choice(problem))
    return allocate(problem, most if limit is None else min(limit, most))


class PlanSearch:
    """Plans within a limit, one after the other: what a written file has too much, the next plan has to save.

    A file may also have fewer bytes than its plan with the numbers of the table, where a layer needs no bias. Where a
    better plan would fit if its file had as many fewer, that one comes next.
    limit: bytes; None: the best plan whatever its size. plan: one that is taken as it is. problem: that of the
    activations that were decided, where it is known. reserved: bytes that the first plan leaves.
    """

    def __init__(
        self,
        analysis: Analysis,
        options: CompileOptions,
        limit: int | None,
        plan: Plan | None = None,
        problem: Problem | None = None,
        reserved: int = RESERVED,
    ) -> None:
        self._reserved = reserved
        self._decided, self._options, self._limit, self._fixed_plan = analysis, options, limit, plan
        self._undecided = analysis.undecided if plan is None else replace(plan, formats={})
        self._problem = problem or problem_of(analysis, self._undecided, options)
        self._attempts, self.is_last = ATTEMPTS, plan is not None
        self._saved = 0  # bytes that the last file had less than with the numbers of the table

    @property
    def limit(self) -> int | None:
        """Bytes that a file should have at most."""
        return self._limit

    def allocate(self) -> AllocatedPlan:
        """The next plan: the best whose file, with the numbers of the table, keeps the limit. Raises Infeasible."""
        if self._fixed_plan is not None:
            return self._allocated(self._fixed_plan)
        while self._attempts:
            self._attempts -= 1
            try:
                allocation = best_within(self._problem, self._limit)
            except Infeasible:
                self.is_last = True
                return self._smallest(self._limit or self._problem.size(best_choice(self._problem)))
            result = AllocatedPlan(self._undecided.with_formats(allocation.choice), allocation, self._problem)
            reserved = 0 if self._saved else self._reserved
            if self._keeps(result, weighed(self._decided, self._options, result.plan) + reserved - self._saved):
                return result
        raise InternalError(
            f"no plan was found whose written file stays within {self._limit:,} bytes after {ATTEMPTS} attempts"
        )

    def takes(self, allocated_plan: AllocatedPlan, written: int) -> bool:
        """Whether a plan with a file of so many bytes ends the search. Raises UsageError where a given one is over."""
        if self._fixed_plan is not None and self._limit is not None and written > self._limit:
            raise UsageError(f"the file of the given plan has {written:,} bytes, over the budget of {self._limit:,}")
        return self.is_last or self._keeps(allocated_plan, written)

    def goes_on(self, allocated_plan: AllocatedPlan, written: int) -> bool:
        """Whether what the file saves buys a plan that is predicted to lose clearly less."""
        saved = allocated_plan.allocation.bytes - written
        if self._limit is None or self.is_last or saved <= 0 or not self._attempts:
            return False
        problem = replace(self._problem, fixed=self._problem.fixed - saved)
        if best_within(problem, self._limit).loss > CLEARLY_LESS * allocated_plan.allocation.loss:
            return False
        self._problem, self._saved = problem, saved
        return True

    def _keeps(self, allocated_plan: AllocatedPlan, written: int) -> bool:
        if self._limit is None or written <= self._limit:
            return True
        # What this plan has beyond what the solver was told, every plan is taken to have.
        self._problem = replace(self._problem, fixed=self._problem.fixed + written - allocated_plan.allocation.bytes)
        return False

    def _smallest(self, limit: int) -> AllocatedPlan:
        """The smallest plan where its written file keeps the limit after all: the solver's bytes are an upper estimate.

        Raises Infeasible with the bytes that it really has.
        """
        allocation = allocate(self._problem, self._problem.size(smallest_choice(self._problem)))
        plan = self._undecided.with_formats(allocation.choice)
        tuned = applied(Reconstruct(), AnalyzedPlan(self._decided, plan)).output
        _, exported = packed(self._decided, plan, tuned, self._options)
        written = exported.size
        problem = replace(self._problem, fixed=self._problem.fixed + written - allocation.bytes)
        if written > limit:
            allocate(problem, limit)
        return AllocatedPlan(plan, replace(allocation, bytes=written, limit=limit), problem)

    def _allocated(self, plan: Plan) -> AllocatedPlan:
        """Raises UsageError where it takes a format that was not measured or that the weight's kernel refuses."""
        for name, candidates in self._problem.by_weight().items():
            forms = [candidate.form for candidate in candidates]
            if (result := plan.formats[name]) not in forms:
                known = ", ".join(map(str, forms))
                raise UsageError(
                    f"the plan stores weight {name!r} as {result}; its kernel and the measurements allow {known}"
                )
        loss = sum(c.loss for c in self._problem.chosen(plan.formats))
        total = self._problem.size(plan.formats)
        allocation = Allocation(dict(plan.formats), loss, 0.0, total, self._limit or total, "given")
        return AllocatedPlan(plan, allocation, self._problem)


def reconstruct(
    analysis: Analysis,
    options: CompileOptions,
    plan: Plan,
    stored: StoredParameters | None = None,
    limit: int | None = None,
    earlier: Earlier | None = None,
) -> tuple[list[QuantizedParameters], list[Note]]:
    """Numbers of a plan from several draws of the data: below 4 bits their losses differ by half and more.

    limit: bytes that the file of each may have. stored: where they may be already; kept there is what no time limit
    made less of. earlier: see `reconstruct_all`.
    """
    tuned, began = list[QuantizedParameters](), time.monotonic()
    every = tuple(range(TRIES[options.pipeline]))
    draws = every if analysis.draws is None else analysis.draws
    if stored is not None:
        known = stored.find(plan, every)
        if known is None and draws != every:
            known = stored.find(plan, draws)
        if known is not None:
            return known, []
    account = FileAccount.open(analysis, options, plan, limit)
    for start in range(0, len(draws), DRAWS_AT_ONCE):
        if start and not analysis.deadline.leaves((time.monotonic() - began) * DRAWS_AT_ONCE / start):
            break
        together = draws[start : start + (DRAWS_AT_ONCE if analysis.deadline.leaves(0) else 1)]
        tuned += reconstruct_all(AnalyzedPlan(analysis, plan), together, account, earlier=earlier)
    for numbers in tuned:
        check_tuned(Reconstruct.name, numbers)
    notes = [] if len(tuned) == len(draws) else [out_of_time(f"{len(tuned)} of {len(draws)} reconstructions")]
    samples, most = min(numbers.samples for numbers in tuned)
    if samples < most:
        notes.append(out_of_time(f"reconstruction with {samples} of {most} samples"))
    if unsolved := max(numbers.solved_alone for numbers in tuned):
        notes.append(out_of_time(f"the reconstruction of {len(plan.layers) - unsolved} of {len(plan.layers)} layers"))
    if stored is not None and not analysis.deadline.is_limited:
        stored.put(plan, tuned)
    return tuned, notes


def best_of(loss: HeldBackLoss, files: Sequence[PackedModel], limit: int | None) -> PackedModel:
    """The one of least held-back loss among those that keep the limit; the smallest one where none does."""
    within = [each for each in files if limit is None or each.size <= limit]
    if not within:
        return min(files, key=lambda each: each.size)
    if len(within) == 1:
        return within[0]
    return min(within, key=lambda each: loss(each.exported.proto))


def better_of(loss: HeldBackLoss, first: QuantizedModel, second: QuantizedModel, limit: int | None) -> QuantizedModel:
    """The one whose file loses less, of two that a search took; the second one is predicted to lose less.

    Where that is the first after all, the bound that was proven is that of the second.
    """
    if second.packed is best_of(loss, [first.packed, second.packed], limit):
        return second
    bound = min(first.allocation.bound, second.allocation.bound)
    status = "optimal" if first.allocation.loss - bound <= PROVEN * first.allocation.loss else "gap"
    allocated = replace(first.allocated, allocation=replace(first.allocation, bound=bound, status=status))
    return replace(first, allocated=allocated)


def tune(analysis: Analysis, plan: Plan, tuned: QuantizedParameters) -> tuple[QuantizedParameters, tuple[Note, ...]]:
    """Numbers behind the gradient steps, and what there is to say of these."""
    # A scale that has to stay a power of two cannot move by a little.
    steps = TuneFeatures(scale_rate=0.0) if analysis.powers else TuneFeatures()
    result = applied(steps, TunablePlan(analysis, plan, tuned))
    return result.output, result.notes


def verified(job: CompileState, fitted: QuantizedModel) -> Verified:
    """Check a file on held-back samples. Raises VerificationError."""
    intent, probes = Intent(job.model, fitted.plan, fitted.tuned), list(job.analysis.held_back.few(VERIFIED_SAMPLES))
    return verify(fitted.exported, fitted.lowered, intent, probes, job.limit)


def fit(
    analysis: Analysis,
    options: CompileOptions,
    limit: int | None,
    plan: Plan | None = None,
    stored: StoredParameters | None = None,
    loss: HeldBackLoss | None = None,
) -> QuantizedModel:
    """The best plan whose written file has at most `limit` bytes; None: the best plan whatever its size.

    plan: take these decisions instead. stored: where numbers of plans are kept. loss: that files are compared by; None
    makes one. Raises Infeasible.
    """
    return fit_search(analysis, PlanSearch(analysis, options, limit, plan), options, stored, loss)


def fit_search(
    analysis: Analysis,
    search: Search,
    options: CompileOptions,
    stored: StoredParameters | None = None,
    loss: HeldBackLoss | None = None,
) -> QuantizedModel:
    """The plan that a search takes, with its file: allocate, reconstruct, lower, pack, until it fits."""
    limit, began, loss = search.limit, time.monotonic(), loss or HeldBackLoss.of(analysis)
    earlier: QuantizedModel | None = None
    last: Earlier | None = None
    while True:
        try:
            allocated = search.allocate()
        except (Infeasible, InternalError):
            if earlier is None:
                raise
            return earlier
        if earlier is not None and allocated.plan.formats == earlier.plan.formats:
            return earlier
        draws, notes = reconstruct(analysis, options, allocated.plan, stored, limit, last)
        files = [_file(analysis, options, allocated.plan, numbers) for numbers in draws]
        best = best_of(loss, files, limit)
        if search.is_last and limit is not None and best.size > limit and analysis.draws is not None:
            # There is no smaller plan, and the file of this one is known to fit with another draw.
            draws, notes = reconstruct(replace(analysis, draws=None), options, allocated.plan, stored, limit, last)
            best = best_of(loss, [_file(analysis, options, allocated.plan, numbers) for numbers in draws], limit)
        last = Earlier(allocated.plan, {numbers.draw: numbers for numbers in draws})
        if options.pipeline == "advanced" and (limit is None or best.size <= limit):
            tuned, more = tune(analysis, allocated.plan, best.tuned)
            best, notes = _file(analysis, options, allocated.plan, tuned), [*notes, *more]
        if earlier is None and not search.takes(allocated, best.size):
            continue
        result = QuantizedModel(allocated, best, tuple(notes))
        if earlier is not None:
            return better_of(loss, earlier, result, limit)
        if not analysis.deadline.leaves(time.monotonic() - began) or not search.goes_on(allocated, best.size):
            return result
        earlier = result


def _file(analysis: Analysis, options: CompileOptions, plan: Plan, numbers: QuantizedParameters) -> PackedModel:
    """The file of a plan with these numbers."""
    lowered = lower(analysis, plan, numbers)
    return PackedModel(numbers, lowered, pack(analysis, plan, lowered, options))
