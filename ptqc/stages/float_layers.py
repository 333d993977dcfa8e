"""What layers in float read: real numbers of 16 bits where that is asked for, or where the native library gains."""

from dataclasses import replace

from ptqc.codegen.targets import Chosen
from ptqc.passes.decide.choose_bfloats import ChooseBfloats
from ptqc.passes.effects import applied
from ptqc.plan import Plan
from ptqc.stages.job import Job


def with_float_layers(job: Job, chosen: Chosen | None, given: Plan | None) -> Job:
    """The compile with the activations chosen that are rounded to bfloat16. given: fixed decisions, which have them."""
    if given is not None or not _in_bfloat16(job, chosen):
        return job
    step = ChooseBfloats(job.options.activation_limit)
    return replace(job, decided=applied(step, job.decided).made)


def _in_bfloat16(job: Job, chosen: Chosen | None) -> bool:
    """`auto` is bfloat16 where a library multiplies it faster, but for a latency, which is predicted for float32."""
    if job.options.float_layers != "auto":
        return job.options.float_layers == "bfloat16"
    if chosen is None or job.budgets.latency is not None:
        return False
    return chosen.target.gains_by_bfloat16(chosen.options)
