"""What layers in float read: real numbers of 16 bits where that is asked for, or where the native library gains."""

from dataclasses import replace

from ptqc.codegen.tvm.isa import several
from ptqc.options import TargetOptions
from ptqc.passes.choose_bfloats import ChooseBfloats
from ptqc.plan import Plan
from ptqc.progress import Progress
from ptqc.stages.documents import Job


def with_float_layers(job: Job, targets: TargetOptions, given: Plan | None, progress: Progress) -> Job:
    """The compile with `float_layers` settled, and the activations chosen that are rounded to bfloat16.

    given: fixed decisions, which have them already.
    """
    options = replace(job.options, float_layers="bfloat16" if _in_bfloat16(job, targets) else "float32")
    job = replace(job, options=options)
    if options.float_layers == "float32" or given is not None:
        return job
    context = replace(job.context, progress=progress)
    notes = ChooseBfloats(options.activation_limit, options.loss).apply(job.prepared.model, context)
    return replace(job, context=context, notes=(*job.notes, *notes))


def _in_bfloat16(job: Job, targets: TargetOptions) -> bool:
    """`auto` is bfloat16 where a library multiplies it faster; ONNX Runtime, which latencies are met with, does not."""
    if job.options.float_layers != "auto":
        return job.options.float_layers == "bfloat16"
    if targets.target is None or job.budgets.latency is not None:
        return False
    return any(isa.bfloats for isa in several(targets.cpu))
