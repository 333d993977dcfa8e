"""Scores have the digits that they need, and every reader who subtracts finds the difference."""

import pytest

from ptqc.artifact.report.scores import ShownScores, scores_of


@pytest.mark.parametrize(
    ("before", "after", "title", "shown"),
    [
        (98.607, 98.664, "top-1 accuracy, %", ("top-1 accuracy, %", "98.61", "98.66", "+0.05")),
        (90.751, 88.499, None, ("score", "90.75", "88.50", "-2.25")),
        (0.9075, 0.8851, "score", ("score", "0.9075", "0.8851", "-0.0224")),
        (75.001, 75.004, "score", ("score", "75.00", "75.00", "+0.00")),
    ],
)
def test_the_difference_is_that_of_what_is_shown(
    before: float, after: float, title: str | None, shown: tuple[str, ...]
) -> None:
    assert scores_of({"float_score": before, "compiled_score": after, "score_title": title}) == ShownScores(*shown)


def test_there_may_be_no_scores() -> None:
    assert scores_of({"float_score": None, "compiled_score": None}) is None
