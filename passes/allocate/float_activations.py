"""Where 8-bit activations give a NaN or an infinity that the float model does not have, all of them stay float."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ptqc.errors import NotFinite
from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note
from ptqc.passes.allocate.job import Job
from ptqc.passes.quantize.phases import Decided

STEP = "choose-activations"
F = TypeVar("F")


def fit_finite(job: Job, decided: Decided, given: Plan | None, fit: Callable[[Decided], F]) -> tuple[Job, F]:
    """What is fitted, and the compile with the activations that it has.

    decided: as in the job, with the deadline for fitting. given: fixed decisions, with which nothing is tried again.
    Raises Infeasible, and NotFinite where weights alone give such a value or codes were asked for.
    """
    try:
        return job, fit(decided)
    except NotFinite as error:
        if given is not None or job.options.activations != "auto" or not decided.activations:
            raise
        told = Note(STEP, "", f"all activations stay float: {error.finding}", Level.WARNING)
    fitted = fit(in_float(decided))
    return replace(job, decided=in_float(job.decided), notes=(*job.notes, told)), fitted


def in_float(decided: Decided) -> Decided:
    """The decision with all activations in float."""
    return replace(decided, activations={}, activation_loss=0.0, proof=None, weight_memory=None)
