"""Never worse than the simple thing: activations in float, and weights rounded to nearest in no more bytes.

Both files run on the held-back samples. 8-bit activations may lose more than the simple file does as far as the time
that they save is worth it, at the rate at which they were chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ptqc.errors import Infeasible, NotFinite
from ptqc.formats import Integer
from ptqc.ir.external import is_in_files
from ptqc.ir.nodes import constant, initial
from ptqc.ir.plan import Plan
from ptqc.ir.quantized_weight import QuantizedParameters, QuantizedWeight, with_tables
from ptqc.notes import Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.activations_in_float import in_float
from ptqc.passes.allocate.choose_activations import WORTH, Worth, limit_of
from ptqc.passes.allocate.cost_model import Clock
from ptqc.passes.allocate.fit import HeldBackLoss, PlanSearch
from ptqc.passes.allocate.problem import packed, problem_of
from ptqc.passes.allocate.state import CompileState, PackedModel, QuantizedModel
from ptqc.passes.quantize.phases import Analysis

STEP = "never-worse"
# Share of the limit that activations may lose whatever they save, such as those in bfloat16 that were asked for.
NEXT_TO_NOTHING = 0.01


@dataclass(frozen=True)
class PlanBuilder:
    """How plans are fitted. analysis: with the deadline for it. clock: by whose times. loss: files are compared by."""

    analysis: Analysis
    fit: Callable[[Analysis], QuantizedModel]
    clock: Clock
    loss: HeldBackLoss


def or_simpler(job: CompileState, fitted: QuantizedModel, builder: PlanBuilder) -> tuple[CompileState, QuantizedModel]:
    """What was fitted; where rounding to nearest loses less, the better of that and of a plan without codes."""
    if job.options.activations not in ("auto", "float") or is_in_files(job.model):
        return job, fitted
    plain = in_float(builder.analysis)
    try:
        simple = rounded_to_nearest(plain, job.options, job.limit)
    except (Infeasible, NotFinite):
        return job, fitted
    loss = builder.loss
    ours, others = loss(fitted.exported.proto), loss(simple.exported.proto)
    if ours - others <= _worth_losing(job, builder):
        return job, fitted
    unit, before = job.analysis.loss_unit, ours
    best = simple
    if job.analysis.activations:
        result = builder.fit(plain)
        ours = loss(result.exported.proto)
        best = result if ours <= others else simple
    what = "activations in float" if best is not simple else "weights rounded to nearest"
    message = f"taken: {what}, which lose {min(ours, others):.3g} {unit} on held-back samples, not {before:.3g}"
    return replace(job, analysis=in_float(job.analysis), notes=(*job.notes, Note(STEP, "", message))), best


def rounded_to_nearest(analysis: Analysis, options: CompileOptions, limit: int | None) -> QuantizedModel:
    """Find the best plan of uniform codes within the bytes, rounded to nearest. Raises Infeasible.

    A weight that has no such format, as one that is pruned, keeps its others as they were solved.
    """
    problem = problem_of(analysis, analysis.undecided, options)
    uniform = {c.weight for c in problem.candidates if isinstance(c.form, Integer)}
    candidates = tuple(c for c in problem.candidates if isinstance(c.form, Integer) or c.weight not in uniform)
    search = PlanSearch(analysis, options, limit, problem=replace(problem, candidates=candidates), reserved=0)
    while True:
        allocated = search.allocate()
        numbers = _nearest(analysis, allocated.plan)
        lowered, exported = packed(analysis, allocated.plan, numbers, options)
        if search.takes(allocated, exported.size):
            return QuantizedModel(allocated, PackedModel(numbers, lowered, exported))


def _nearest(analysis: Analysis, plan: Plan) -> QuantizedParameters:
    solutions = dict[str, QuantizedWeight]()
    for weight in plan.weights:
        form = plan.formats[weight.name]
        solutions[weight.name] = analysis.solutions[weight.name, form]
        if isinstance(form, Integer):
            values, axis = initial(analysis.model, weight.name), weight.channel_axis
            solutions[weight.name] = QuantizedWeight(form, *form.rounded(values, axis, powers=analysis.powers), axis)
    graph = analysis.model.graph
    biases = {
        layer.name: None if layer.bias is None else constant(graph.initializers[layer.bias]) for layer in plan.layers
    }
    flat = {name: None if bias is None else bias.reshape(-1) for name, bias in biases.items()}
    return QuantizedParameters(with_tables(solutions, plan.weights), flat)


def _worth_losing(job: CompileState, builder: PlanBuilder) -> float:
    """The loss that the time which codes save is worth."""
    analysis = job.analysis
    if not analysis.activations:
        return 0.0
    worth, limit = Worth.of(analysis), limit_of(analysis.loss_unit, job.options.activation_limit)
    sites = [site for site in analysis.sites if site.name in analysis.activations]
    return limit * max(worth.saved(sites, worth.times(builder.clock)) / WORTH, NEXT_TO_NOTHING)
