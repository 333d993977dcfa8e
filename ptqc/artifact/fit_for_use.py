"""Whether a file is fit for use that passed every check: a time limit may have left out too much for that."""

from collections.abc import Iterable

from ptqc.errors import Missed
from ptqc.evaluation.judge import Judged
from ptqc.notes import Note, is_cut_short, reasons_unfit, unfit
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.allocate.state import CompileState, QuantizedModel

# How many times the loss that was predicted a file may have, of which a time limit left out measuring.
PREDICTED = 10.0


def check_fit(notes: Iterable[Note]) -> None:
    """Raises Missed where a note says that the file is not fit for use."""
    if reasons := reasons_unfit(notes):
        raise Missed(f"the file is not fit for use: {reasons[0]}; without strict it is delivered all the same")


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
