"""Whether a file that passed every check keeps its budgets and is fit for use, and what to look at before that.

A time limit may have left out too much; labelled data may be unlike the calibration data; states may add up errors.
"""

from collections.abc import Iterable, Mapping

from ptqc.artifact.results import budgets_of
from ptqc.budget import sections_of
from ptqc.errors import Missed
from ptqc.evaluation.judge import Judged
from ptqc.evaluation.scoring import STEP
from ptqc.losses.base import UNITS
from ptqc.notes import Level, Note, is_cut_short, reasons_unfit, unfit
from ptqc.passes.allocate.choose_activations import limit_of
from ptqc.passes.allocate.constraints.criteria import most_of
from ptqc.passes.allocate.state import BudgetReport, CompileState, QuantizedModel

# How many times the loss that was predicted a file may have, of which a time limit left out measuring.
PREDICTED = 10.0
# Of percent, points that are worth a look; of other scores, percent of the float model's.
MOST_LOST = 2.0
SURE = 0.99  # how sure it is that held-back samples do not explain a lower score
# How many times the loss of single runs states that are fed back may cost.
DRIFT = 3.0


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


def lower_score(judged: Judged) -> list[Note]:
    """Warn of a score that falls by more than MOST_LOST, and say whether held-back answers that changed explain it."""
    before, after = judged.float_score, judged.compiled_score
    if before is None or after is None:
        return []
    title, is_percent = (judged.score_title or "score").removesuffix(", %"), (judged.score_title or "").endswith("%")
    lost = before - after if is_percent else 100 * (before - after) / (abs(before) or 1.0)
    if not lost > MOST_LOST:
        return []
    message = f"{title} falls by {lost:.2f} {'points' if is_percent else '%'} on the labelled data"
    changed = 100 * most_of(sum(judged.differing), judged.samples, SURE)
    if judged.agreement is not None and is_percent and lost > changed:
        message = (
            f"{message}; the held-back samples let at most {changed:.1f} % of the answers change: see whether "
            "calibration and labelled data come from the same source and are prepared alike"
        )
    return [Note(STEP, "", message, Level.WARNING)]


def drifts(judged: Judged) -> list[Note]:
    """Warn of errors that add up where states are fed back."""
    fed = judged.fed_back
    if fed is None or fed.loss <= max(DRIFT * fed.single_loss, UNITS[fed.loss_unit].tolerance):
        return []
    message = (
        f"over {fed.runs} runs in a row that read their own states, the outputs diverge by {fed.loss:.3g} "
        f"{fed.loss_unit}, and by {fed.single_loss:.3g} where states are the float model's: score whole sequences "
        "before you ship it (`evaluate` in Python)"
    )
    return [Note(STEP, "", message, Level.WARNING)]
