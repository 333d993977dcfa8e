"""What layers in float read: real numbers of 16 bits where that is asked for, or where the native library gains."""

from dataclasses import replace

from ptqc.codegen.targets import target_named
from ptqc.options import TargetOptions
from ptqc.passes.decide.choose_bfloats import ChooseBfloats
from ptqc.passes.effects import applied
from ptqc.plan import Plan
from ptqc.stages.documents import Job


def with_float_layers(job: Job, targets: TargetOptions, given: Plan | None) -> Job:
    """The compile with the activations chosen that are rounded to bfloat16. given: fixed decisions, which have them."""
    if given is not None or not _in_bfloat16(job, targets):
        return job
    step = ChooseBfloats(job.options.activation_limit)
    return replace(job, decided=applied(step, job.decided).made)


def _in_bfloat16(job: Job, targets: TargetOptions) -> bool:
    """`auto` is bfloat16 where a library multiplies it faster; ONNX Runtime, which latencies are met with, does not."""
    if job.options.float_layers != "auto":
        return job.options.float_layers == "bfloat16"
    if targets.target is None or job.budgets.latency is not None:
        return False
    return target_named(targets.target).gains_by_bfloat16(targets)
