"""Budgets of a microcontroller: of the flash that a network in C takes, and of the memory that it works in.

Flash is a second resource of the program that chooses formats of weights: each costs the bytes of its packing, and each
kind of packing the code that unpacks it. What reconstruction changes of these bytes, the built network shows; the limit
then shrinks by it. Memory is that of activations, which formats of weights hardly change: it is only checked.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np

from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.codegen.targets import Chosen, Footprint, SizedTarget, TargetInput
from ptqc.errors import Infeasible, TargetError, UsageError
from ptqc.formats import UINT8, Format, Integer, QuantParams
from ptqc.ir.layers import Weight
from ptqc.ir.lowered import Lowered
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.allocation import Problem, best_choice, smallest_in_flash
from ptqc.passes.allocate.fit import VERIFIED_SAMPLES
from ptqc.passes.allocate.lower import Lower
from ptqc.passes.allocate.problem import bias_of, name_length, packed, problem_of, table_parameters, uncorrected
from ptqc.passes.allocate.state import BudgetReport, CompileState, Constraint, Context, Quantity, QuantizedModel
from ptqc.passes.quantize.phases import Analysis, AnalysisInput, FlashCosts, PlanWithParameters
from ptqc.passes.quantize.prepare import CanonicalModel

FLASH_SUFFIX, RAM_SUFFIX = "flash", "ram"
# Parts that a message names.
LARGEST_PARTS = 5
# Share of the limit by which a network that is too large has to become smaller at least.
STEP_DOWN = 0.002
# Bits of weights that are read as they are, and of those that are unpacked.
WIDTHS = (8, 4)
# A scale of activations.
LOWEST = 2**-8


@dataclass(frozen=True)
class FlashBudget(Constraint):
    """A limit on the bytes of constants and code of a network. chosen: the target that builds it, of this name."""

    bytes: int
    target: str = ""
    chosen: Chosen | None = field(default=None, compare=False, repr=False)
    kind: ClassVar[str] = "flash"
    section: ClassVar[str] = "flash"
    examples: ClassVar[Mapping[str, str]] = {
        "64KBflash": "constants and code on a microcontroller (--target c)",
    }
    names_target: ClassVar[bool] = True
    # Each makes the network smaller, down to the smallest.
    revisions: ClassVar[int] = sys.maxsize

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "64KBflash", "64KBflash@c"."""
        size = quantity.bytes(FLASH_SUFFIX)
        return None if size is None else cls(int(size), quantity.target)

    def both(self, other: Self) -> Self | None:
        return min(self, other, key=lambda one: one.bytes) if other.target == self.target else None

    def for_target(self, target: Chosen | None) -> tuple[Constraint, ...]:
        """Of the target that is built, where none is named."""
        return (replace(self, target=self.target or _name_of(target), chosen=target),)

    def check_request(self, target: Chosen | None, store: object, *, is_scored: bool) -> None:  # noqa: ARG002
        """Raises UsageError without a target for microcontrollers."""
        _check_target(self, self.target, target)

    def decide(self, job: CompileState, context: Context) -> CompileState:
        """Limit the formats of weights; to the smallest ones where these are predicted to exceed the budget."""
        if context.plan is not None:
            return job
        with context.progress.stage("weigh weights in flash"):
            costs = _flash_costs(job, _chosen(self), self.bytes)
        return replace(job, analysis=replace(job.analysis, flash=costs))

    def report(self, job: CompileState, fitted: QuantizedModel, context: Context) -> BudgetReport:
        """The bytes of the network that is delivered."""
        with context.progress.stage("measure the flash"):
            size = _footprint(job.analysis, _chosen(self), job.options, fitted.lowered, fitted.exported)
        flash, formats = job.analysis.flash, fitted.plan.formats
        document = {
            "budget": str(self),
            "limit_bytes": self.bytes,
            "used_bytes": size.flash,
            "constant_bytes": size.constant_bytes,
            "code_bytes": size.code_bytes,
            "structure_bytes": size.structure_bytes,
            "compiler": size.compiler,
            "weight_bytes": None if flash is None else flash.of(formats),
        }
        return BudgetReport(document, _over(self, self.kind, size.flash, self.bytes))

    def revise(self, job: CompileState, report: BudgetReport, context: Context) -> CompileState | None:
        """Leave weights less where the network takes too much. Raises Infeasible where it is the smallest already."""
        over = report.document["used_bytes"] - self.bytes
        if over <= 0:
            return None
        costs = job.analysis.flash
        if context.plan is not None or costs is None:
            raise UsageError(f"{report.notes[0].message}, and the plan is given")
        problem = replace(problem_of(job.analysis, job.analysis.undecided, job.options), flash=costs)
        smallest = smallest_in_flash(problem)
        least, taken = costs.of(smallest), report.document["weight_bytes"]
        if taken <= least:
            raise self._refusal(costs, smallest, report.document)
        limit = max(least, taken - max(over, int(STEP_DOWN * self.bytes), 1))
        return replace(job, analysis=replace(job.analysis, flash=replace(costs, limit=limit)))

    def _refusal(self, costs: FlashCosts, smallest: Mapping[str, Format], document: Mapping[str, Any]) -> Infeasible:
        parts = [(f"{name} ({form})", costs.bytes.get((name, form), 0)) for name, form in smallest.items()]
        parts += [("code", document["code_bytes"]), ("descriptions of layers", document["structure_bytes"])]
        largest = tuple(sorted(parts, key=lambda part: -part[1]))
        return Infeasible(
            f"the budget of {self} cannot be met: the smallest network takes {document['used_bytes']:,} bytes "
            f"(code by {document['compiler']}). Largest parts: {_named(largest)}",
            document["used_bytes"],
            largest,
        )

    def __str__(self) -> str:
        return f"{self.bytes:,} B of flash"


@dataclass(frozen=True)
class RamBudget(Constraint):
    """A limit on the bytes that a network works in, with its inputs and outputs, but without the stack.

    target, chosen: as of `FlashBudget`.
    """

    bytes: int
    target: str = ""
    chosen: Chosen | None = field(default=None, compare=False, repr=False)
    kind: ClassVar[str] = "ram"
    section: ClassVar[str] = "ram"
    examples: ClassVar[Mapping[str, str]] = {
        "20KBram@c": "working memory on a microcontroller (--target c), without the stack",
    }
    names_target: ClassVar[bool] = True

    @classmethod
    def parse(cls, quantity: Quantity) -> Self | None:
        """Read "20KBram@c"; without a target it is memory of ONNX Runtime unless one for microcontrollers is built."""
        size = quantity.bytes(RAM_SUFFIX) if quantity.target else None
        return None if size is None else cls(int(size), quantity.target)

    def both(self, other: Self) -> Self | None:
        return min(self, other, key=lambda one: one.bytes) if other.target == self.target else None

    def for_target(self, target: Chosen | None) -> tuple[Constraint, ...]:
        """With the target that is built."""
        return (replace(self, chosen=target),)

    def check_request(self, target: Chosen | None, store: object, *, is_scored: bool) -> None:  # noqa: ARG002
        """Raises UsageError without a target for microcontrollers."""
        _check_target(self, self.target, target)

    def check(self, prepared: CanonicalModel, options: CompileOptions) -> None:
        """Raises Infeasible where shapes alone show that no network keeps it: all activations of 8 bits."""
        if options.activations == "integer":
            self._check([*_by_shapes(prepared, options, _chosen(self))])

    def decide(self, job: CompileState, context: Context) -> CompileState:
        """Refuse before the plan is searched. Raises Infeasible."""
        del context
        analysis, options = job.analysis, job.options
        problem = problem_of(analysis, analysis.undecided, options)
        self._check([*_of_extremes(analysis, options, problem, _chosen(self))])
        return job

    def report(self, job: CompileState, fitted: QuantizedModel, context: Context) -> BudgetReport:  # noqa: ARG002
        """The bytes of the network that is delivered."""
        size = _footprint(job.analysis, _chosen(self), job.options, fitted.lowered, fitted.exported)
        document = {
            "budget": str(self),
            "limit_bytes": self.bytes,
            "used_bytes": size.ram,
            "arena_bytes": size.arena_bytes,
            "input_and_output_bytes": size.input_and_output_bytes,
            "peak": size.peak,
            "alive": [list(each) for each in size.alive],
        }
        return BudgetReport(document, _over(self, self.kind, size.ram, self.bytes))

    def revise(self, job: CompileState, report: BudgetReport, context: Context) -> CompileState | None:  # noqa: ARG002
        """Raises Infeasible where the network takes more, which no other formats of weights change."""
        document = report.document
        if document["used_bytes"] > self.bytes:
            ends, alive = document["input_and_output_bytes"], [(name, size) for name, size in document["alive"]]
            raise self._refusal(document["used_bytes"], document["peak"], alive, ends)
        return None

    def _check(self, sizes: list[Footprint]) -> None:
        """Raises Infeasible where none is within the limit, with one that all of them are within."""
        if min((size.ram for size in sizes), default=0) > self.bytes:
            most = max(sizes, key=lambda size: size.ram)
            raise self._refusal(most.ram, most.peak, list(most.alive), most.input_and_output_bytes)

    def _refusal(self, needed: int, peak: str, alive: list[tuple[str, int]], ends: int) -> Infeasible:
        largest = tuple(alive)
        return Infeasible(
            f"the budget of {self} cannot be met: the network needs {needed:,} bytes, {ends:,} of them for its inputs "
            f"and outputs. Most is needed while {peak} is made, for {_named(largest)}",
            needed,
            (*largest, ("inputs and outputs", ends)),
        )

    def __str__(self) -> str:
        return f"{self.bytes:,} B of RAM"


def _name_of(target: Chosen | None) -> str:
    return target.name if target is not None and isinstance(target.target, SizedTarget) else ""


def _check_target(budget: Constraint, name: str, chosen: Chosen | None) -> None:
    """Raises UsageError where the target that a budget is of is not built for certain, or has no such sizes."""
    if not name or chosen is None or chosen.name != name:
        said = name or "c"
        raise UsageError(
            f"the budget of {budget} is of what a target builds for microcontrollers: give target {said} too"
        )
    if not isinstance(chosen.target, SizedTarget):
        raise UsageError(f"the budget of {budget} is of microcontrollers, which the target {name} does not build for")
    if chosen.may_be_missing:
        raise UsageError(
            f"the budget of {budget} needs what the target {name} builds, which --allow-missing-target allows to be "
            "missing: leave that out"
        )


def _chosen(budget: FlashBudget | RamBudget) -> Chosen:
    assert budget.chosen is not None  # else the request was refused
    return budget.chosen


def _over(budget: Constraint, step: str, used: int, limit: int) -> tuple[Note, ...]:
    if used <= limit:
        return ()
    return (Note(step, "", f"the network takes {used:,} bytes, over the budget of {budget}", Level.WARNING),)


def _named(parts: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{what} {size:,} B" for what, size in parts[:LARGEST_PARTS])


# Networks of a plan, as its target builds them.


def _source(analysis: AnalysisInput, options: CompileOptions, lowered: Lowered, exported: Exported) -> TargetInput:
    """What a target builds of a graph, with the samples that it is built with."""
    samples = list(analysis.held_back.of_main_size().few(VERIFIED_SAMPLES))
    return TargetInput(lowered, exported, samples, analysis.tuning, analysis.model, {}, options.runtime)


def _footprint(
    analysis: AnalysisInput, chosen: Chosen, options: CompileOptions, lowered: Lowered, exported: Exported
) -> Footprint:
    target = _sized(chosen)
    return target.footprint(_source(analysis, options, lowered, exported), chosen.options)


def _sized(chosen: Chosen) -> SizedTarget:
    assert isinstance(chosen.target, SizedTarget)
    return chosen.target


def _with_table(analysis: Analysis, options: CompileOptions, choice: Mapping[str, Format]) -> TargetInput:
    """A graph with the numbers of the table."""
    plan = analysis.undecided.with_formats(choice)
    return _source(analysis, options, *packed(analysis, plan, table_parameters(analysis, choice), options))


def _of_extremes(analysis: Analysis, options: CompileOptions, problem: Problem, chosen: Chosen) -> Iterator[Footprint]:
    """Of the best and the smallest formats of weights."""
    for choice in (best_choice(problem), dict(problem.smallest)):
        yield _sized(chosen).footprint(_with_table(analysis, options, choice), chosen.options)


def _flash_costs(job: CompileState, chosen: Chosen, most: int) -> FlashCosts:
    """What weights take, and what is left to them of so many bytes: at least what the smallest need."""
    analysis, options, target = job.analysis, job.options, _sized(chosen)
    weights, plan = {weight.name: weight for weight in analysis.weights}, analysis.undecided
    stored = dict[tuple[str, Format], tuple[int, str]]()
    for (name, form), solution in analysis.solutions.items():
        layers = weights[name].layers
        biases = [bias_of(analysis.model, layer, solution, plan) for layer in layers]
        stored[name, form] = target.stored(solution, biases, is_depthwise=any(layer.is_depthwise for layer in layers))
    functions = {pair: function for pair, (_, function) in stored.items()}
    costs = FlashCosts({pair: size for pair, (size, _) in stored.items()}, functions, {}, sys.maxsize)
    problem = replace(problem_of(replace(analysis, flash=None), plan, options), flash=costs)
    extremes = [best_choice(problem), smallest_in_flash(problem)]
    sources = [_with_table(analysis, options, choice) for choice in extremes]
    once = target.unpacking_bytes(sources[0], chosen.options, sorted(set(functions.values())))
    costs = replace(costs, once=once)
    pairs = zip(sources, extremes, strict=True)
    fixed = max(target.footprint(source, chosen.options).flash - costs.of(choice) for source, choice in pairs)
    least = costs.of(smallest_in_flash(replace(problem, flash=costs)))
    return replace(costs, limit=max(most - fixed, least))


def _by_shapes(prepared: CanonicalModel, options: CompileOptions, chosen: Chosen) -> Iterator[Footprint]:
    """Of a model whose activations are codes, outputs or not, with weights that are read as they are or unpacked.

    Numbers are drawn: memory does not depend on them.
    """
    rules, generator = options.rules, np.random.default_rng(0)
    model, samples = prepared.model, (prepared.tuning, prepared.held_back)
    setting = AnalysisInput.of(model, *samples, closed=rules.closed, fused=rules.fused)
    if any(not weight.layers for weight in setting.weights):  # tables may stay float
        return
    # Low enough that what clips them is a part of its layer, and of other parameters each, as those of a model are.
    codes = {site.name: QuantParams(UINT8, LOWEST + place / 2**16, 0) for place, site in enumerate(setting.sites)}
    outputs = {str(value.name) for value in model.graph.outputs}
    inner = {site.name: codes[site.name] for site in setting.sites if outputs.isdisjoint(site.tensors)}
    for bits, activations in product(WIDTHS, (codes, inner)):
        numbers = {weight.name: _drawn(weight, bits, generator) for weight in setting.weights}
        plan = replace(setting.roles, activations=activations)
        plan = plan.with_formats({name: weight.form for name, weight in numbers.items()})
        tuned = QuantizedParameters(with_tables(numbers, setting.weights), uncorrected(model, plan.layers))
        try:
            lowered = Lower().apply(PlanWithParameters(model, plan, tuned)).output
            exported = export(lowered, model, name_length(model, plan))
            yield _footprint(setting, chosen, options, lowered, exported)
        except TargetError:  # what has no kernel is told where kernels are looked for
            return


def _drawn(weight: Weight, bits: int, generator: np.random.Generator) -> QuantizedWeight:
    form, axis = Integer(bits), weight.channel_axis
    codes = np.asarray(form.code_of(generator.integers(0, 2**bits, weight.shape, np.int16)), np.int8)
    return QuantizedWeight(form, codes, np.linspace(1, 2, weight.shape[axis], dtype=np.float32), axis)
