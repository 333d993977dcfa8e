"""Whether a file that passed every check keeps its budgets and is fit for use.

A time limit may have left out too much for that.
"""

from collections.abc import Iterable, Mapping

from ptqc.artifact.results import budgets_of
from ptqc.budget import sections_of
from ptqc.errors import Missed
from ptqc.evaluation.judge import Judged
from ptqc.notes import Note, is_cut_short, reasons_unfit, unfit
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.allocate.state import BudgetReport, CompileState, QuantizedModel

# How many times the loss that was predicted a file may have, of which a time limit left out measuring.
PREDICTED = 10.0


def check_fit(notes: Iterable[Note]) -> None:
    """Raises Missed where a note says that the file is not fit for use."""
    if reasons := reasons_unfit(notes):
        raise Missed(f"the file is not fit for use: {reasons[0]}; without strict it is delivered all the same")


def check_budgets(reports: Mapping[str, BudgetReport]) -> None:
    """Raises Missed, with what the file needs, for the first budget that it does not keep. reports: by kind."""
    results = {one.kind: one for one in budgets_of({"budget": None, **sections_of(reports)})}
    for kind, report in reports.items():
        if report.notes:
            message = f"{report.notes[0].message}; without strict the file is delivered all the same"
            one = results.get(kind)  # none of a kind that a plugin adds
            raise Missed(message) if one is None else Missed(message, one.budget, one.limit, one.value, one.unit)


def worse_than_predicted(
    job: CompileState, fitted: QuantizedModel, judged: Judged, notes: Iterable[Note]
) -> list[Note]:
    """That a file loses far more than was predicted of it, where a time limit left out measuring."""
    predicted = fitted.allocation.loss + job.analysis.activation_loss
    if not is_cut_short(notes) or judged.loss <= PREDICTED * predicted or not _matters(job, judged):
        return []
    message = (
        f"it loses {judged.loss:.3g} {judged.loss_unit} on held-back samples, where {predicted:.3g} were predicted"
    )
    return [unfit(f"{message}, as the time limit left out measuring")]


def _matters(job: CompileState, judged: Judged) -> bool:
    """Whether a loss is more than 8-bit activations may cost by default."""
    return judged.loss > limit_of(job.analysis.loss_unit, job.options.activation_limit)
