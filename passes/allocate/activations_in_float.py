"""Where 8-bit activations give a NaN or an infinity that the float model does not have, all of them stay float."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ptqc.codegen.targets import Chosen
from ptqc.errors import NotFinite
from ptqc.formats import BFLOAT16, FLOAT8_ACTIVATION
from ptqc.ir.plan import Plan
from ptqc.notes import Level, Note
from ptqc.options import CompileOptions
from ptqc.passes.allocate.choose_activations import ChooseFloatRoundings
from ptqc.passes.allocate.state import CompileState
from ptqc.passes.effects import applied
from ptqc.passes.quantize.phases import Analysis

STEP = "choose-activations"
F = TypeVar("F")


def fit_finite(
    job: CompileState, analysis: Analysis, plan: Plan | None, fit: Callable[[Analysis], F]
) -> tuple[CompileState, F]:
    """What is fitted, and the compile with the activations that it has.

    decided: as in the job, with the deadline for fitting. plan: fixed decisions, with which nothing is tried again.
    Raises Infeasible, and NotFinite where weights alone give such a value or codes were asked for.
    """
    try:
        return job, fit(analysis)
    except NotFinite as error:
        if plan is not None or job.options.activations != "auto" or not analysis.activations:
            raise
        result = Note(STEP, "", f"all activations stay float: {error.finding}", Level.WARNING)
    fitted = fit(in_float(analysis))
    return replace(job, analysis=in_float(job.analysis), notes=(*job.notes, result)), fitted


def in_float(analysis: Analysis) -> Analysis:
    """The decision with all activations in float."""
    return replace(analysis, activations={}, activation_loss=0.0, proof=None, weight_memory=None)


# What layers in float read: numbers of fewer digits where that is asked for, or where the native library gains.

# Of the limit on the loss from activations, beside activations of 8 bits.
BFLOAT16_SHARE = 0.25


def with_float_layers(job: CompileState, chosen: Chosen | None, plan: Plan | None) -> CompileState:
    """The compile with the activations chosen that have fewer digits. plan: fixed decisions, which have them."""
    is_rounded = job.options.in_float8 or _in_bfloat16(job, chosen)
    if plan is not None or not is_rounded:
        return job
    return replace(job, analysis=applied(rounding_of(job.options), job.analysis).output)


def rounding_of(options: CompileOptions) -> ChooseFloatRoundings:
    """The pass that chooses these activations, where some are to be rounded."""
    if options.in_float8:
        return ChooseFloatRoundings(FLOAT8_ACTIVATION, options.activation_limit)
    return ChooseFloatRoundings(BFLOAT16, options.activation_limit, BFLOAT16_SHARE)


def _in_bfloat16(job: CompileState, chosen: Chosen | None) -> bool:
    """`auto` is bfloat16 where a library multiplies it faster, but for a latency, which is predicted for float32."""
    if job.options.float_layers != "auto":
        return job.options.float_layers == "bfloat16"
    if chosen is None or job.timed is not None:
        return False
    return chosen.target.gains_by_bfloat16(chosen.options)
