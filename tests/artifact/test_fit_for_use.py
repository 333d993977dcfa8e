"""When a file that passed every check is not fit for use, or what helps against a loss."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ptqc.artifact.documents import _advice
from ptqc.artifact.fit_for_use import check_fit, drifts, lower_score, worse_than_predicted
from ptqc.errors import Missed
from ptqc.evaluation.judge import FedBack, Judged
from ptqc.notes import out_of_time, unfit


def parts(weights: float, activations: float, loss: float = 0.0, chosen: str = "auto") -> tuple[Any, Any]:
    """A compile and its outcome: losses that were predicted of weights and activations, and the one measured."""
    analysis = SimpleNamespace(activation_loss=activations, loss_unit="nat")
    job = SimpleNamespace(analysis=analysis, options=SimpleNamespace(activation_limit=0.0, activations=chosen))
    fitted = SimpleNamespace(allocation=SimpleNamespace(loss=weights))
    judged = SimpleNamespace(loss=loss, loss_unit="nat")
    return job, SimpleNamespace(fitted=fitted, judged=judged, activation_loss=activations)


@pytest.mark.parametrize(
    ("weights", "activations", "chosen", "words"),
    [
        (0.2, 0.1, "auto", "give it more bytes"),
        (0.1, 0.2, "auto", "give a smaller --activation-limit, or --activations float"),
        (0.1, 0.2, "integer", "let --activations be auto or float"),
    ],
)
def test_the_advice_names_the_part_that_costs(weights: float, activations: float, chosen: str, words: str) -> None:
    advice = _advice(*parts(weights, activations, chosen=chosen))
    assert advice.endswith(words)
    assert ("more bytes do not change" in advice) == (activations > weights)


@pytest.mark.parametrize(
    ("loss", "is_short", "is_unfit"), [(0.114, True, True), (0.114, False, False), (0.004, True, False)]
)
def test_a_loss_far_above_the_prediction_of_a_compile_that_was_cut_short(
    loss: float, is_short: bool, is_unfit: bool
) -> None:
    job, outcome = parts(0.0005, 0.0, loss)
    notes = [out_of_time("something")] if is_short else []
    result = worse_than_predicted(job, outcome.fitted, outcome.judged, notes)
    assert bool(result) == is_unfit
    if result:
        with pytest.raises(Missed, match=r"not fit for use: it loses 0.114 nat on held-back samples, where 0.0005"):
            check_fit(result)


def test_what_is_fit_passes() -> None:
    check_fit([out_of_time("something")])
    with pytest.raises(Missed, match="not fit for use: a reason"):
        check_fit([unfit("a reason")])


def judged(**changes: Any) -> Judged:
    """64 held-back samples, all of whose answers stay the same where nothing else is said."""
    usual: dict[str, Any] = {
        "samples": 64,
        "loss": 0.001,
        "loss_unit": "nat",
        "outputs": (SimpleNamespace(agreement=1.0),),
    }
    return Judged(**{**usual, "by_sample": (0.001,) * 64, "differing": (False,) * 64, **changes})


@pytest.mark.parametrize(
    ("before", "after", "title", "expected"),
    [
        (90.0, 88.1, "top-1 accuracy, %", None),
        (90.0, 87.5, "top-1 accuracy, %", "top-1 accuracy falls by 2.50 points on the labelled data$"),
        (90.0, 66.5, "top-1 accuracy, %", "by 23.50 points.*let at most 6.9 % of the answers change: see whether"),
        (0.90, 0.89, "score", None),
        (0.90, 0.86, "score", "score falls by 4.44 % on the labelled data$"),
        (None, None, None, None),
    ],
)  # fmt: skip
def test_a_score_that_falls_is_warned_of(
    before: float | None, after: float | None, title: str | None, expected: str | None
) -> None:
    """Of 64 answers none changed, which 99 in 100 times means that fewer than 1 - 0.01^(1/64) = 6.9 % do."""
    result = lower_score(judged(float_score=before, compiled_score=after, score_title=title))
    assert bool(result) == (expected is not None)
    if expected is not None:
        assert re.search(expected, result[0].message)


def test_errors_that_add_up_are_warned_of() -> None:
    assert not drifts(judged())
    assert not drifts(judged(fed_back=FedBack(64, 0.019, 0.0001, "nat", 1.0)))
    assert not drifts(judged(fed_back=FedBack(64, 0.05, 0.02, "nat", 1.0)))
    (note,) = drifts(judged(fed_back=FedBack(64, 0.09, 0.02, "nat", 0.9)))
    assert (
        "over 64 runs in a row that read their own states, the outputs diverge by 0.09 nat, and by 0.02" in note.message
    )
