"""Where 8-bit activations give a NaN or an infinity that the float model does not have, all of them stay float."""

from dataclasses import replace

from ptqc.errors import NotFinite
from ptqc.notes import Level, Note
from ptqc.plan import Plan
from ptqc.stages.job import Job

STEP = "choose-activations"


def without_codes(job: Job, error: NotFinite, given: Plan | None) -> Job:
    """The compile with all activations in float, and a warning that says why.

    given: fixed decisions. Raises the error where weights alone give such a value or codes were asked for.
    """
    if given is not None or job.options.activations != "auto" or not job.decided.activations:
        raise error
    told = Note(STEP, "", f"all activations stay float: {error.finding}", Level.WARNING)
    decided = replace(job.decided, activations={}, activation_loss=0.0, proven={})
    return replace(job, decided=decided, notes=(*job.notes, told))
