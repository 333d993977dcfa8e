"""What a compile with a budget of loss tells: what was asked, predicted and measured, and what the judge found."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptqc.budget import LossBudget
from ptqc.errors import Missed
from ptqc.notes import Level, Note
from ptqc.passes.allocate.loss.bounds import CONFIDENCE
from ptqc.passes.allocate.loss.criteria import Lost
from ptqc.passes.allocate.loss.loss_budget import Verdict

STEP = "loss"


@dataclass(frozen=True)
class KeptLoss:
    """document: for the manifest."""

    document: Mapping[str, Any]
    notes: tuple[Note, ...]

    def check(self) -> None:
        """Raises Missed where the judge did not find the budget kept."""
        if self.notes:
            raise Missed(f"{self.notes[0].message}; without strict the file is delivered all the same")


def tell_loss(budget: LossBudget, verdict: Verdict, loss_unit: str) -> KeptLoss:
    """What was asked of a file, and what it was found to lose. loss_unit: of what was predicted."""
    delivered, judged = verdict.rounds[verdict.delivered], verdict.judged[verdict.delivered]
    needed = None if verdict.is_kept else verdict.criterion.needed(judged)
    document = {
        "budget": str(budget),
        "unit": budget.unit,
        "limit": budget.limit,
        "predicted": delivered.predicted,
        "predicted_unit": loss_unit,
        "measured": _to_json(delivered.held),
        "judged": _to_json(judged),
        "confidence": CONFIDENCE,
        "kept": verdict.is_kept,
        "samples_needed": needed,
        "delivered": verdict.delivered,
        "rounds": [
            {
                "limit": one.limit,
                "predicted": one.predicted,
                "bytes": one.size,
                "measured": _to_json(one.held),
                "judged": _to_json(verdict.judged[number]) if number in verdict.judged else None,
            }
            for number, one in enumerate(verdict.rounds)
        ],
    }
    return KeptLoss(document, () if verdict.is_kept else (_missed(budget, verdict, judged, needed),))


def _to_json(lost: Lost) -> dict[str, Any]:
    bound = lost.bound if math.isfinite(lost.bound) else None  # of a single sample
    return {"lost": lost.value, "bound": bound, "samples": lost.samples, "method": lost.method}


def _missed(budget: LossBudget, verdict: Verdict, judged: Lost, needed: int | None) -> Note:
    shown = verdict.criterion.shown
    on = f"on {judged.samples:,} unseen samples" if judged.samples else "by the score"
    found = f"the file loses {shown(judged.value)} {on}"
    if judged.value > budget.limit:
        return Note(STEP, "", f"{found}, over the budget of {budget}: allow a larger loss", Level.WARNING)
    more = "give more samples"
    if needed is not None:
        more = f"about {max(needed - judged.samples, 1):,} samples more would show that it is kept"
    message = f"{found}, but it may lose up to {shown(judged.bound)}, over the budget of {budget}: {more}"
    return Note(STEP, "", message, Level.WARNING)
