"""What budgets that choose activations share: what weights cost beside them, and the size that a choice leaves."""

from dataclasses import replace
from typing import ClassVar, Protocol

from ptqc.notes import Note
from ptqc.passes.allocate.allocation import smallest_choice
from ptqc.passes.allocate.joint import WeightCosts
from ptqc.passes.allocate.problem import problem_of
from ptqc.passes.allocate.state import CompileState
from ptqc.passes.base import Effect, Result
from ptqc.passes.effects import applied
from ptqc.passes.quantize.phases import Analysis


class JointStep(Protocol):
    """A pass that chooses activations together with formats for the weights."""

    name: ClassVar[str]
    effect: ClassVar[Effect]

    @property
    def weighed(self) -> WeightCosts:
        """What weights cost, and the size that they may have."""

    def within(self, limit: int) -> "JointStep":
        """The same with another limit for the size."""

    def apply(self, analysis: Analysis, /) -> Result[Analysis]:
        """The decision with other activations. Raises Infeasible."""

    def smallest(self, analysis: Analysis) -> float:
        """About the bytes of the smallest file with the activations that were chosen: as the program has them."""


CORRECTIONS = 2
# Share of the size by which an estimate of it may be wrong.
NEGLIGIBLE = 5e-4


def weighed_of(job: CompileState) -> WeightCosts:
    """What weights cost beside kernels in float, and on codes wherever there is a kernel."""
    analysis, options = job.analysis, job.options
    in_float, on_codes = (
        problem_of(analysis, replace(analysis.roles, activations=activations), options)
        for activations in ({}, analysis.ranges)
    )
    layers = {weight.name: tuple(layer.name for layer in weight.layers) for weight in analysis.weights}
    return WeightCosts(in_float, on_codes, layers, job.limit)


def within_size(job: CompileState, step: JointStep) -> tuple[Analysis, list[Note]]:
    """The activations that a step chooses, with formats of weights that keep the size.

    What sites add to the file is taken as an even share of what all of them add; for those that were chosen it is
    then known, and the choice is made again with what that leaves of the size.
    """
    limit = job.limit
    result = applied(step, job.analysis)
    if limit is None or result.output is job.analysis:
        return result.output, list(result.notes)
    for _ in range(CORRECTIONS):
        missed = round(_smallest(job, result.output) - step.smallest(result.output))
        if abs(missed - (limit - (step.weighed.limit or limit))) <= NEGLIGIBLE * limit:
            break
        step = step.within(limit - missed)
        result = applied(step, job.analysis)
    return result.output, list(result.notes)


def _smallest(job: CompileState, analysis: Analysis) -> int:
    """Bytes of the smallest file with the activations that were chosen."""
    problem = problem_of(analysis, analysis.undecided, job.options)
    return problem.size(smallest_choice(problem))
