"""Scores have the digits that they need, and every reader who subtracts finds the difference."""

import pytest

from ptqc.artifact.report.scores import ShownScores, least_agreement, scores_of


@pytest.mark.parametrize(
    ("before", "after", "title", "shown"),
    [
        (98.607, 98.664, "top-1 accuracy, %", ("top-1 accuracy", "98.61 %", "98.66 %", "+0.05 points")),
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


@pytest.mark.parametrize(
    ("agreement", "samples", "shown"),
    [
        (1.0, 64, "at least 95.4 % with 95 % confidence"),  # 0.05^(1/64)
        (63 / 64, 64, "at least 92.8 % with 95 % confidence"),
        (0.0, 32, "at least 0.0 % with 95 % confidence"),
        (0.9871, 64, ""),  # several predictions in a sample depend on each other
        (None, 64, ""),
    ],
)
def test_agreement_of_a_few_samples_is_bounded(agreement: float | None, samples: int, shown: str) -> None:
    """Clopper and Pearson's one-sided bound."""
    assert least_agreement({"top1_agreement": agreement, "held_back_samples": samples}) == shown
