"""Scores and agreement with as many digits as they need, and what samples show of all data."""

import math
from dataclasses import dataclass

from ptqc.artifact.report.rows import Document
from ptqc.losses.base import UNITS
from ptqc.passes.allocate.constraints.criteria import most_of

DIGITS, MORE_DIGITS = 2, 4  # of percent; of scores of at most 1
CONFIDENCE = 0.95


@dataclass(frozen=True)
class ShownScores:
    """Numbers as texts. metric: what is scored. difference: with its sign, so that it is that of the two texts."""

    metric: str
    before: str
    after: str
    difference: str


def scores_of(results: Document) -> ShownScores | None:
    """Both scores; None where there are none."""
    before, after = results["float_score"], results["compiled_score"]
    if before is None or after is None:
        return None
    metric, _, unit = (results.get("score_title") or "score").partition(", ")
    unit = f" {unit}" if unit else ""
    digits = DIGITS if max(abs(before), abs(after)) > 1 else MORE_DIGITS
    difference = round(round(after, digits) - round(before, digits), digits) + 0.0
    points = " points" if unit == " %" else unit
    return ShownScores(
        metric, f"{before:.{digits}f}{unit}", f"{after:.{digits}f}{unit}", f"{difference:+.{digits}f}{points}"
    )


def least_agreement(results: Document) -> str:
    """What the samples show of the agreement on all data; empty where they have several predictions each, or none."""
    agreement, count = results["top1_agreement"], results["held_back_samples"]
    if agreement is None or not math.isclose(agreement * count, same := round(agreement * count), abs_tol=1e-6):
        return ""
    least = 1 - most_of(count - same, count, CONFIDENCE)
    return f"at least {math.floor(1000 * least) / 10:.1f} % with {100 * CONFIDENCE:.0f} % confidence"


# Shares of what 8-bit activations may cost by default.
GRADES = ((0.01, "negligible"), (0.3, "small"), (1.0, "noticeable"))


def divergence_in_words(results: Document) -> str:
    """The divergence on held-back samples, with its grade."""
    grade = graded(results)
    return f"divergence {results['loss']:.3g} {results['loss_unit']}" + (f" ({grade})" if grade else "")


def graded(results: Document) -> str:
    """The divergence on a scale for people; empty for units without one."""
    unit = UNITS.get(results["loss_unit"])
    if unit is None:
        return ""
    return next((word for most, word in GRADES if results["loss"] <= most * unit.tolerance), "large")
