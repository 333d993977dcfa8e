"""The scores of both models, with as many digits as they need, and the difference between what is shown."""

from dataclasses import dataclass

from ptqc.artifact.report.rows import Document

DIGITS, MORE_DIGITS = 2, 4  # of percent; of scores of at most 1


@dataclass(frozen=True)
class ShownScores:
    """Numbers as texts. title: what is scored. difference: with its sign, so that it is that of the two texts."""

    title: str
    before: str
    after: str
    difference: str


def scores_of(results: Document) -> ShownScores | None:
    """Both scores; None where there are none."""
    before, after = results["float_score"], results["compiled_score"]
    if before is None or after is None:
        return None
    digits = DIGITS if max(abs(before), abs(after)) > 1 else MORE_DIGITS
    difference = round(round(after, digits) - round(before, digits), digits) + 0.0
    shown = (f"{before:.{digits}f}", f"{after:.{digits}f}", f"{difference:+.{digits}f}")
    return ShownScores(results.get("score_title") or "score", *shown)
