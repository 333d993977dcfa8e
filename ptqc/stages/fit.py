"""From measurements and a limit to a packed file that keeps it: allocate, reconstruct, lower, pack, weigh."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ptqc.biases import accumulator_scale, bias_codes, usable_scale
from ptqc.codegen.onnxruntime import functions, names, size
from ptqc.codegen.onnxruntime.export import Exported, export
from ptqc.errors import Infeasible, InternalError, UsageError
from ptqc.formats import Format, coded
from ptqc.graph.layers import Layer, Weight
from ptqc.graph.nodes import constant
from ptqc.lowered import Lowered
from ptqc.notes import Note, out_of_time
from ptqc.options import CompileOptions, Pipeline
from ptqc.passes.decide.phases import Decided, Numbered, Planned, Tunable
from ptqc.passes.effects import applied, check_tuned
from ptqc.passes.lower import Lower
from ptqc.passes.tune.features import TuneFeatures
from ptqc.passes.tune.reconstruct import Reconstruct, reconstruct_all
from ptqc.plan import Plan
from ptqc.solutions import Solution, Tuned
from ptqc.solvers.allocation import Allocation, Candidate, Problem, allocate, best_choice, smallest_choice
from ptqc.stages.compare import HeldBackLoss

ATTEMPTS = 8
# Reconstructions of a plan of which the best on held-back samples is taken.
TRIES: Mapping[Pipeline, int] = {"light": 2, "advanced": 6}
DRAWS_AT_ONCE = 2


@dataclass(frozen=True)
class Fitted:
    """The delivered file and everything that led to it. told: bytes that the solver was told."""

    plan: Plan
    tuned: Tuned
    allocation: Allocation
    problem: Problem
    lowered: Lowered
    exported: Exported
    told: int
    notes: tuple[Note, ...] = ()


def fit(
    model: ir.Model, decided: Decided, options: CompileOptions, limit: int | None, fixed_plan: Plan | None = None
) -> Fitted:
    """The best plan whose written file has at most `limit` bytes; None: the best plan whatever its size.

    fixed_plan: take these decisions instead. Raises Infeasible.
    """
    chosen = replace(decided.roles, activations=decided.activations)
    undecided = chosen if fixed_plan is None else replace(fixed_plan, formats={})
    problem = problem_of(model, decided, undecided, options)
    if fixed_plan is not None:
        return _as_planned(model, decided, options, fixed_plan, problem, limit)
    for _ in range(ATTEMPTS):
        # More than the best plan needs is never spent: what lowers no loss gets no bytes.
        most = problem.size(best_choice(problem))
        try:
            allocation = allocate(problem, most if limit is None else min(limit, most))
        except Infeasible:
            return _smallest(model, decided, options, undecided, problem, limit or most)
        plan = undecided.with_formats(allocation.choice)
        written = _weighed(model, decided, options, plan)
        if limit is None or written <= limit:
            fitted = _built(model, decided, options, plan, allocation, problem, limit)
            written = len(fitted.exported.data)
        if limit is None or written <= limit:
            return fitted
        # What this plan has beyond what the solver was told, every plan is taken to have.
        problem = replace(problem, fixed=problem.fixed + written - allocation.bytes)
    raise InternalError(f"no plan was found whose written file keeps {limit:,} bytes after {ATTEMPTS} attempts")


def _smallest(
    model: ir.Model, decided: Decided, options: CompileOptions, undecided: Plan, problem: Problem, limit: int
) -> Fitted:
    """The smallest plan where its written file keeps the limit after all: the solver's bytes are an upper estimate.

    Raises Infeasible with the bytes that it really has.
    """
    allocation = allocate(problem, problem.size(smallest_choice(problem)))
    plan = undecided.with_formats(allocation.choice)
    tuned = applied(Reconstruct(), Planned(decided, plan)).made
    _, exported = packed(model, plan, tuned, inline=options.inline)
    written = len(exported.data)
    problem = replace(problem, fixed=problem.fixed + written - allocation.bytes)
    if written > limit:
        allocate(problem, limit)
    return _built(model, decided, options, plan, replace(allocation, bytes=written, limit=limit), problem, limit)


def _as_planned(
    model: ir.Model, decided: Decided, options: CompileOptions, plan: Plan, problem: Problem, limit: int | None
) -> Fitted:
    _check_formats(problem, plan)
    fitted = _built(model, decided, options, plan, _as_given(problem, plan, limit), problem, limit)
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


def _weighed(model: ir.Model, decided: Decided, options: CompileOptions, plan: Plan) -> int:
    """Bytes of a plan's file with the table's numbers."""
    numbers = table_numbers(model, decided, plan.formats)
    return len(packed(model, plan, numbers, inline=options.inline)[1].data)


def _built(
    model: ir.Model,
    decided: Decided,
    options: CompileOptions,
    plan: Plan,
    allocation: Allocation,
    problem: Problem,
    limit: int | None,
) -> Fitted:
    """The best of a plan's reconstructions that keep the limit; the smallest one where none does."""
    tries, notes = _tries(model, decided, options, plan)
    within = [built for built in tries if limit is None or len(built[-1].data) <= limit]
    smallest = min(tries, key=lambda built: len(built[-1].data))
    tuned, lowered, exported = _best(model, decided, within) if within else smallest
    if within and options.pipeline == "advanced":
        result = applied(TuneFeatures(), Tunable(decided, plan, tuned))
        tuned, notes = result.made, [*notes, *result.notes]
        lowered, exported = packed(model, plan, tuned, inline=options.inline)
    return Fitted(plan, tuned, allocation, problem, lowered, exported, problem.size(plan.formats), tuple(notes))


_Built = tuple[Tuned, Lowered, Exported]


def _tries(model: ir.Model, decided: Decided, options: CompileOptions, plan: Plan) -> tuple[list[_Built], list[Note]]:
    """A plan's reconstructions from several draws of the data: below 4 bits their losses differ by half and more."""
    draws, tuned, began = range(TRIES[options.pipeline]), list[Tuned](), time.monotonic()
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
    return [(numbers, *packed(model, plan, numbers, inline=options.inline)) for numbers in tuned], notes


def _best(model: ir.Model, decided: Decided, found: Sequence[_Built]) -> _Built:
    """The one of least held-back loss."""
    if len(found) == 1:
        return found[0]
    loss = HeldBackLoss(model, decided.held_back, decided.kinds)
    return min(found, key=lambda built: loss(built[-1].data))


def packed(model: ir.Model, plan: Plan, tuned: Tuned, *, inline: bool = False) -> tuple[Lowered, Exported]:
    """The lowered graph of a plan with its numbers, and its file; inline: without model-local functions."""
    lowered = applied(Lower(), Numbered(model, plan, tuned)).made
    return lowered, export(lowered, model, _name_length(model, plan), inline=inline)


def _as_given(problem: Problem, plan: Plan, limit: int | None) -> Allocation:
    loss = sum(c.loss for c in problem.chosen(plan.formats))
    total = problem.size(plan.formats)
    return Allocation(dict(plan.formats), loss, 0.0, total, limit or total, "given")


def problem_of(model: ir.Model, decided: Decided, plan: Plan, options: CompileOptions) -> Problem:
    """Candidates with their bytes; what every plan has is weighed on two plans that are really written."""
    length = _name_length(model, plan)
    candidates: list[Candidate] = []
    found: dict[str, functions.Function] = {}
    for weight in decided.weights:
        for form in forms(weight, decided, plan, options):
            solution = decided.solutions[weight.name, form]
            uses = [_use(model, layer, solution, plan) for layer in weight.layers]
            total, needed = size.stored(solution, uses, length, inline=options.inline)
            found.update({function.name: function for function in needed})
            parts = (*(f.name for f in needed), *((functions.DOMAIN,) if needed else ()))
            candidates.append(Candidate(weight.name, form, total, decided.weight_losses[weight.name, form], parts))
    opset = model.opset_imports[""]
    once = size.function_bytes(list(found.values()), opset)
    empty = Problem(tuple(candidates), 0, once)
    weighed = (best_choice(empty), smallest_choice(empty))
    fixed = max(_weighed(model, decided, options, plan.with_formats(choice)) - empty.size(choice) for choice in weighed)
    return replace(empty, fixed=fixed)


def forms(weight: Weight, decided: Decided, plan: Plan, options: CompileOptions) -> list[Format]:
    """The formats a weight may take: on an integer kernel codes that cannot saturate, else everything."""
    found = sorted(form for name, form in decided.solutions if name == weight.name)
    if not any(layer.name in plan.integer for layer in weight.layers):
        return found
    widest = options.widest_on_integers
    return [form for form in found if form.code_bits is not None and form.code_bits <= widest]


def _use(model: ir.Model, layer: Layer, solution: Solution, plan: Plan) -> size.Use:
    if layer.name not in plan.integer or layer.op_type == "MatMul":
        return size.Use(layer.name in plan.integer, None)
    x, y = plan.params[layer.input], plan.params.get(layer.settled)
    bias = _bias(model, layer)
    scale = usable_scale(solution.scale, bias, x)
    return size.Use(True, bias_codes(bias, accumulator_scale(x, scale), None if y is None else y.scale))


def _bias(model: ir.Model, layer: Layer) -> np.ndarray:
    bias = constant(model.graph.initializers[layer.bias]) if layer.bias else None
    # Bias correction gives every layer a bias; its digits do not matter for the size, their presence does.
    return np.ones(layer.channels, np.float32) * 1e-3 if bias is None else bias.reshape(-1)


def _name_length(model: ir.Model, plan: Plan) -> int:
    """Characters per name, the same for every choice of formats: from an upper estimate of the names in the file."""
    per_layer, per_site, per_cast, per_table = 7, 5, 2, 4
    tables = sum(not weight.layers for weight in plan.weights)
    values = sum(len(node.outputs) for node in model.graph) + len(model.graph.inputs) + len(model.graph.initializers)
    added = per_layer * len(plan.layers) + per_site * len(coded(plan.activations)) + per_table * tables
    added += per_cast * len(plan.cast)
    return names.name_length(values + added)


def table_numbers(model: ir.Model, decided: Decided, choice: Mapping[str, Format]) -> Tuned:
    """The table's own numbers, without bias correction: enough to weigh a plan."""
    weights = {name: decided.solutions[name, form] for name, form in choice.items()}
    biases = {layer.name: None if layer.op_type == "MatMul" else _bias(model, layer) for layer in decided.layers}
    return Tuned(weights, biases)
