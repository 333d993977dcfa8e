"""The file within the budgets: each constraint decides, a plan is searched and built, and the file is measured."""

from dataclasses import replace

from ptqc.notes import out_of_time
from ptqc.passes.allocate.activations_in_float import fit_finite, with_float_layers
from ptqc.passes.allocate.choose_activations import clock_of
from ptqc.passes.allocate.fit import FITTING_SHARE, HeldBackLoss, fit, stored_parameters, verified
from ptqc.passes.allocate.simplest import PlanBuilder, or_simpler
from ptqc.passes.allocate.state import BudgetedModel, BudgetReport, CompileState, Constraint, Context


def meet_budgets(job: CompileState, context: Context) -> BudgetedModel:
    """Decide for every budget, build the file and measure it; again where a constraint decides again.

    Raises Infeasible.
    """
    for constraint in job.budgets:
        job = constraint.decide(job, context)
    delivery = _built(job, context)
    for constraint in job.budgets:
        for _ in range(constraint.revisions):
            report = delivery.reports.get(constraint.kind)
            revised = None if report is None else constraint.revise(delivery.job, report, context)
            if revised is None:
                break
            for later in _after(constraint, job):
                revised = later.decide(revised, context)
            delivery = _built(revised, context)
    return delivery


def _after(constraint: Constraint, job: CompileState) -> tuple[Constraint, ...]:
    """The constraints that decide behind this one."""
    constraints = job.budgets.constraints
    return constraints[constraints.index(constraint) + 1 :]


def _built(job: CompileState, context: Context) -> BudgetedModel:
    """The file of the activations that were decided, with what every constraint reports of it."""
    searched = (delivery for one in job.budgets if (delivery := one.search(job, context)) is not None)
    delivery = next(searched, None) or _within_size(job, context)
    reports = dict[str, BudgetReport]()
    for constraint in job.budgets:
        report = delivery.reports.get(constraint.kind) or constraint.report(delivery.job, delivery.fitted, context)
        if report is not None:
            reports[constraint.kind] = report
    return replace(delivery, reports=reports)


def _within_size(job: CompileState, context: Context) -> BudgetedModel:
    """The best file within the size; that of rounding to nearest where it loses less."""
    plan, target, stored = context.plan, context.target, stored_parameters(job, context.store)
    job = with_float_layers(job, target, plan)  # inputs of float layers in bfloat16 or FP8
    analysis = replace(job.analysis, deadline=context.deadline.share(FITTING_SHARE))
    clock = clock_of(job.options, target is not None and target.in_library)
    loss = HeldBackLoss.of(analysis)
    builder = PlanBuilder(analysis, lambda known: fit(known, job.options, job.limit, plan, stored, loss), clock, loss)
    job, fitted = fit_finite(job, analysis, plan, builder.fit)
    if plan is not None or job.budgets.choose_activations:
        return BudgetedModel(job, fitted)
    if analysis.deadline.leaves(0):
        before, (job, fitted) = fitted, or_simpler(job, fitted, builder)
        if fitted is not before:  # a fault of the compiler, which may be why it loses more, would go unseen
            verified(job, before)
    else:
        job = replace(job, notes=(*job.notes, out_of_time("no comparison with weights rounded to nearest")))
    return BudgetedModel(job, fitted)
