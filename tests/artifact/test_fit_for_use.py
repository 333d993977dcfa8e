"""When a file that passed every check is not fit for use, or what helps against a loss."""

from types import SimpleNamespace
from typing import Any

import pytest

from ptqc.artifact.documents import _advice
from ptqc.artifact.fit_for_use import check_fit, worse_than_predicted
from ptqc.errors import Missed
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
    found = worse_than_predicted(job, outcome.fitted, outcome.judged, notes)
    assert bool(found) == is_unfit
    if found:
        with pytest.raises(Missed, match=r"not fit for use: it loses 0.114 nat on held-back samples, where 0.0005"):
            check_fit(found)


def test_what_is_fit_passes() -> None:
    check_fit([out_of_time("something")])
    with pytest.raises(Missed, match="not fit for use: a reason"):
        check_fit([unfit("a reason")])
